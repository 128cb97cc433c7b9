"""A Redis, or any process, whose clock can be set, as libfaketime would do that crashes some builds of Redis."""

import mmap
import struct
import subprocess
from functools import lru_cache
from pathlib import Path
from tempfile import mkdtemp

from tests.servers import RedisServer, need_binary

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile long long *ahead; /* seconds */

__attribute__((constructor)) static void begin(void) {
  int file = open(getenv("CLOCK_AHEAD"), O_RDONLY);
  void *found = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
  if (found != MAP_FAILED) ahead = found;
}

static long long offset(void) { return ahead ? *ahead : 0; }

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += offset();
  return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec precise;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *now) {
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  if (now) *now = precise.tv_sec;
  return precise.tv_sec;
}
"""


@lru_cache(maxsize=1)
def _library() -> Path:
    folder = Path(mkdtemp(prefix="throttle-clock-"))
    (folder / "clock.c").write_text(SOURCE)
    command = [need_binary("gcc"), "-shared", "-fPIC", "-O1", "-o", str(folder / "clock.so"), str(folder / "clock.c")]
    subprocess.run([*command, "-ldl"], check=True)
    return folder / "clock.so"


class Clock:
    """The wall clock of the processes that are started with its ``environment``; ``step`` sets it ahead, or back."""

    def __init__(self, seconds: int = 0) -> None:
        self.file = _library().with_name(f"ahead-{id(self)}")
        self.file.write_bytes(struct.pack("q", seconds))
        self.environment = {"LD_PRELOAD": str(_library()), "CLOCK_AHEAD": str(self.file)}

    def step(self, seconds: int) -> None:
        with self.file.open("r+b") as file, mmap.mmap(file.fileno(), 8) as memory:
            (ahead,) = struct.unpack("q", memory[:8])
            memory[:8] = struct.pack("q", ahead + seconds)


class SteppingServer(RedisServer):
    """One Redis process; ``step`` sets its clock ahead, or back."""

    def __init__(self, *options: str) -> None:
        self.clock = Clock()
        self.step = self.clock.step
        super().__init__(*options)

    def command(self) -> list[str]:
        settings = [f"{name}={value}" for name, value in self.clock.environment.items()]
        return [need_binary("env"), *settings, *super().command()]
