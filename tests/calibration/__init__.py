"""The emulator held to what a GPU does."""
