// What libnybble_ime.so offers to programs that know of it; others need only LD_PRELOAD. See docs/ime-emulator.md.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// How many times an instruction ran since the start or the last reset, by mnemonic and type: "smt.vmadot i8".
// All instructions together for a null name; 0 for an unknown one.
unsigned long long nybble_ime_count(const char* name);

void nybble_ime_reset(void);

#ifdef __cplusplus
}
#endif
