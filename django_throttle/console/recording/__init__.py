"""What rules decided, lately: counted in each process, added up in Redis by its agent, read by operators' pages."""

from django_throttle.console.recording.flush import RecordFlusher
from django_throttle.console.recording.recorder import recorder

__all__ = ["RecordFlusher", "recorder"]
