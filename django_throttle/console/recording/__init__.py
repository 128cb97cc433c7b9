"""Records of recent decisions: counted in each process, added up in Redis by agents, read by pages and commands."""

from django_throttle.console.recording.flush import RecordFlusher
from django_throttle.console.recording.recorder import recorder

__all__ = ["RecordFlusher", "recorder"]
