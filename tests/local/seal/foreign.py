"""Run as a program on x86_64: seals itself and makes a 32-bit system call, which no filter for 64 bits looks at."""

from towline.seal import seal_process

seal_process()

import ctypes  # noqa: E402
import mmap  # noqa: E402

GETPID = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"  # mov eax, 20; int 0x80; ret
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(GETPID)
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())
