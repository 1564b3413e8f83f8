// AMX's tile instructions on processors without them, for tests: what the processor refuses (SIGILL) is decoded and
// done in software, so that the machine code of the kernels runs as it is. Some microseconds an instruction.
#pragma once

namespace amx_emulator {

// Whether this process may use the processor's own AMX (asks Linux for the permission).
bool native();

// From now on refused tile instructions are emulated, on every thread; anything else that is refused, and every misuse
// of the tiles that the architecture forbids, ends the process with a message.
void install();

// Instructions emulated so far, on all threads.
long count();

}  // namespace amx_emulator
