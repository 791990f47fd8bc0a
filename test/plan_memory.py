"""Peak memory of a plan, by its steps."""

from torch_reformer.compiler.runtime.executable import Executable


def peak_bytes(executable: Executable) -> int:
    """The most bytes that tensors of a plan have at a time, without its inputs. Memory that calls allocate for
    themselves is not known."""
    plan, types = executable.plan, executable.emitted.types
    memory = {number: number for number in range(plan._inputs)}  # tensor -> the first tensor in its memory
    users = dict.fromkeys(memory, 1)
    size, now, most = dict.fromkeys(memory, 0), 0, 0
    for step, frees in zip(plan.steps, plan.frees, strict=True):
        into = dict(zip(reversed(step.made), reversed(step.into), strict=False))
        for number in step.made:
            if step.kind in ("view", "parts"):
                base = step.inputs[0]
            else:
                base = next(iter(step.call.writes if step.call else ()), into.get(number))
            if base is None:
                memory[number], users[number] = number, 0
                size[number] = types[number].layout.numel * types[number].dtype.itemsize
                now += size[number]
            else:
                memory[number] = memory[base]
            users[memory[number]] += 1
        most = max(most, now)
        for number in frees:
            first = memory[number]
            users[first] -= 1
            now -= 0 if users[first] else size[first]
    return most
