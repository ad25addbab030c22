"""The wire, as pure data: frames, their decoder, the handshake, messages. No I/O, no clock."""
