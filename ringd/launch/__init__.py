"""``ringd run``: a whole job on this machine, and no process left behind."""
