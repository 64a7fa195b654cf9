"""What operators call, room by room: messages to values and back. Knows no gRPC."""
