"""The Model Context Protocol: its messages and our tools. It knows neither transports nor the rest of the runtime."""
