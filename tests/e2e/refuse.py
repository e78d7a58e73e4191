# SPDX-License-Identifier: Apache-2.0
"""refuse.py COMMAND...: runs a command to which the system refuses the use of matrix tiles, as a container's filter or an older kernel would."""
import ctypes
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM = 158, 0x1023  # x86-64
REFUSE, ALLOW = 0x00050000 | 1, 0x7FFF0000  # with EPERM
LOAD, IF_EQUAL, RETURN = 0x20, 0x15, 0x06
RULES = [(LOAD, 0, 0, 0), (IF_EQUAL, 0, 3, SYS_ARCH_PRCTL), (LOAD, 0, 0, 16), (IF_EQUAL, 0, 1, ARCH_REQ_XCOMP_PERM), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]


class Program(ctypes.Structure):
    _fields_ = [("n", ctypes.c_ushort), ("rules", ctypes.c_void_p)]


def main():
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in RULES))
    program = Program(len(RULES), ctypes.cast(code, ctypes.c_void_p))
    prctl = ctypes.CDLL(None).prctl
    if prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 or prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        sys.exit("the system takes no filter")
    os.execvp(sys.argv[1], sys.argv[1:])


main()
