"""What trainers do in tests: functions of a stage, whose results travel back as JSON."""
