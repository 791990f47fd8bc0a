"""Worker process that compiles kernels for its parent: a run-time compiler has one lock, so a process compiles one
kernel at a time. Imports neither this package nor torch, since that takes longer than compiling a kernel.

Reads from stdin, for one kernel after another, the fields of gpu.Compiler and the source's name and text. Writes the
result to stdout: the code object, or the compiler's log as text.
"""

import ctypes
import pickle
import sys


def compiled(path: str, prefix: str, code: str, options: list, name: str, text: str):
    library, program = ctypes.CDLL(path), ctypes.c_void_p()

    def call(function, *arguments):
        return getattr(library, prefix + function)(*arguments)

    def read(what):
        size = ctypes.c_size_t()
        call(f"Get{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        call(f"Get{what}", program, buffer)
        return buffer.raw

    call("CreateProgram", ctypes.byref(program), text.encode(), name.encode(), 0, None, None)
    arguments = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    failed = call("CompileProgram", program, len(options), arguments)
    result = read("ProgramLog").decode(errors="replace") if failed else read(code)
    call("DestroyProgram", ctypes.byref(program))
    return result


def main() -> None:
    read, write = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            kernel = pickle.load(read)
        except EOFError:
            return
        pickle.dump(compiled(*kernel), write)
        write.flush()


if __name__ == "__main__":
    main()
