// After Intel's manual: LDTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILELOADDT1, TILESTORED, TDPBF16PS (palette 1).
#include "amx_emulator.h"

#include <cpuid.h>
#include <immintrin.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace amx_emulator {
namespace {

constexpr int kTiles = 8, kRows = 16, kBytes = 64;

struct Config {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(Config) == 64, "as LDTILECFG reads it");

struct Tiles {
  Config config;
  uint8_t tile[kTiles][kRows][kBytes];
};
thread_local Tiles tiles;

std::atomic<long> emulated{0};

// stdio is not for signal handlers, but the process ends here.
[[noreturn]] void fail(const char* what, const uint8_t* code) {
  std::fprintf(stderr, "amx_emulator: %s; code", what);
  for (int n = 0; n < 12; ++n) std::fprintf(stderr, " %02x", code[n]);
  std::fprintf(stderr, "\n");
  std::abort();
}

// An instruction of the VEX map 0F38 with one operand in memory or three registers.
struct Instruction {
  const uint8_t* code;
  int opcode, prefix;  // 0 none, 1 66, 2 F3, 3 F2
  int reg, rm, vvvv;   // registers; rm only without memory
  bool memory, indexed;
  uint64_t base;  // the address without the index
  int64_t index;  // the index register, scaled: a tile's stride
  const uint8_t* next;

  Instruction(const uint8_t* at, const greg_t* registers) : code(at) {
    static constexpr int kRegisters[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                           REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    const auto value = [&](int number) { return uint64_t(registers[kRegisters[number]]); };
    if (*at == 0x67 || *at == 0x64 || *at == 0x65) fail("an address prefix, which is not emulated", code);
    if (at[0] != 0xc4 || (at[1] & 0x1f) != 2) fail("an illegal instruction that is none of AMX", code);
    const int high_reg = at[1] & 0x80 ? 0 : 8, high_index = at[1] & 0x40 ? 0 : 8, high_base = at[1] & 0x20 ? 0 : 8;
    if (at[2] & 0x84) fail("VEX.W or VEX.L is set", code);
    vvvv = ~(at[2] >> 3) & 15;
    prefix = at[2] & 3;
    opcode = at[3];
    const int mode = at[4] >> 6;
    reg = (at[4] >> 3 & 7) | high_reg;
    rm = at[4] & 7;
    memory = mode != 3;
    indexed = memory && rm == 4;
    base = 0, index = 0;
    next = at + 5;
    if (!memory) {
      rm |= high_base;
      return;
    }
    int base_register = rm;
    if (indexed) {
      const int sib = *next++, index_register = (sib >> 3 & 7) | high_index;
      base_register = sib & 7;
      if (index_register != 4) index = int64_t(value(index_register) << (sib >> 6));
    }
    int displacement_bytes = mode == 0 ? 0 : (mode == 1 ? 1 : 4);
    if (mode == 0 && base_register == 5) displacement_bytes = 4;
    else base = value(base_register | high_base);
    int64_t displacement = 0;
    if (displacement_bytes == 1) displacement = int8_t(*next);
    if (displacement_bytes == 4) {
      int32_t wide;
      std::memcpy(&wide, next, 4);
      displacement = wide;
    }
    next += displacement_bytes;
    if (mode == 0 && rm == 5) base = uint64_t(next);  // relative to the next instruction
    base += uint64_t(displacement);
  }
};

void load_config(const Instruction& in) {
  std::memset(&tiles, 0, sizeof tiles);
  Config c;
  std::memcpy(&c, reinterpret_cast<const void*>(in.base + uint64_t(in.index)), sizeof c);
  if (c.palette == 0) return;
  if (c.palette != 1) fail("LDTILECFG: unknown palette", in.code);
  for (const uint8_t byte : c.reserved)
    if (byte != 0) fail("LDTILECFG: reserved bytes", in.code);
  for (int t = 0; t < 16; ++t) {
    if (t >= kTiles ? (c.bytes[t] != 0 || c.rows[t] != 0) : (c.bytes[t] > kBytes || c.rows[t] > kRows))
      fail("LDTILECFG: no such tile or too large a tile", in.code);
    if ((c.bytes[t] == 0) != (c.rows[t] == 0)) fail("LDTILECFG: rows without bytes, or bytes without rows", in.code);
  }
  tiles.config = c;
}

void configured(const Instruction& in, int tile) {
  if (tiles.config.palette == 0) fail("tiles are not configured", in.code);
  if (tile >= kTiles || tiles.config.rows[tile] == 0) fail("a tile that is not configured", in.code);
}

void load(const Instruction& in) {
  configured(in, in.reg);
  if (!in.indexed) fail("TILELOADD needs an SIB byte", in.code);
  uint8_t (*tile)[kBytes] = tiles.tile[in.reg];
  const int start = tiles.config.start_row;
  if (start >= tiles.config.rows[in.reg]) fail("TILELOADD: the start row is outside", in.code);
  if (start == 0) std::memset(tile, 0, kRows * kBytes);
  for (int r = start; r < tiles.config.rows[in.reg]; ++r) {
    std::memset(tile[r], 0, kBytes);
    std::memcpy(tile[r], reinterpret_cast<const void*>(in.base + uint64_t(r * in.index)), tiles.config.bytes[in.reg]);
  }
  tiles.config.start_row = 0;
}

void store(const Instruction& in) {
  configured(in, in.reg);
  if (!in.indexed) fail("TILESTORED needs an SIB byte", in.code);
  for (int r = tiles.config.start_row; r < tiles.config.rows[in.reg]; ++r)
    std::memcpy(reinterpret_cast<void*>(in.base + uint64_t(r * in.index)), tiles.tile[in.reg][r],
                tiles.config.bytes[in.reg]);
  tiles.config.start_row = 0;
}

// c[m][n] += (sum of even k) + (sum of odd k), each a chain of fused multiply-adds from zero, denormals zero
// throughout.
void multiply(const Instruction& in) {
  const int c = in.reg, a = in.rm, b = in.vvvv;
  if (c == a || c == b || a == b) fail("TDPBF16PS: the same tile twice", in.code);
  for (const int tile : {c, a, b}) configured(in, tile);
  const Config& config = tiles.config;
  if (config.bytes[c] % 4 || config.bytes[a] % 4 || config.bytes[b] % 4) fail("TDPBF16PS: bytes of a row", in.code);
  if (config.rows[c] != config.rows[a] || config.bytes[c] != config.bytes[b] || config.bytes[a] / 4 != config.rows[b])
    fail("TDPBF16PS: sizes do not fit", in.code);
  const unsigned control = _mm_getcsr();
  _mm_setcsr(0x1f80 | 0x8040);  // round to nearest even; denormals are zero, and flushed
  const auto widen = [](__m512i pairs, bool odd) {
    return _mm512_castsi512_ps(odd ? _mm512_and_si512(pairs, _mm512_set1_epi32(int(0xffff0000u)))
                                   : _mm512_slli_epi32(pairs, 16));
  };
  const __mmask16 columns = __mmask16((1u << config.bytes[c] / 4) - 1);
  for (int m = 0; m < kRows; ++m) {
    if (m >= config.rows[c]) {
      std::memset(tiles.tile[c][m], 0, kBytes);
      continue;
    }
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (int k = 0; k < config.bytes[a] / 4; ++k) {
      int32_t pair;
      std::memcpy(&pair, tiles.tile[a][m] + 4 * k, 4);
      const __m512i left = _mm512_set1_epi32(pair), right = _mm512_loadu_si512(tiles.tile[b][k]);
      even = _mm512_fmadd_ps(widen(left, false), widen(right, false), even);
      odd = _mm512_fmadd_ps(widen(left, true), widen(right, true), odd);
    }
    const __m512 sum = _mm512_add_ps(_mm512_loadu_ps(tiles.tile[c][m]), _mm512_add_ps(even, odd));
    _mm512_storeu_ps(tiles.tile[c][m], _mm512_maskz_mov_ps(columns, sum));
  }
  _mm_setcsr(control);
  tiles.config.start_row = 0;
}

enum Prefix { kNone, k66, kF3, kF2 };

void handle(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const Instruction in(reinterpret_cast<const uint8_t*>(registers[REG_RIP]), registers);
  const bool product = in.opcode == 0x5c && in.prefix == kF3 && !in.memory;
  if (!product && in.vvvv != 0) fail("VEX.vvvv is set", in.code);
  if (product) {
    multiply(in);
  } else if (in.opcode == 0x49 && in.prefix == kNone && in.memory && in.reg == 0) {
    load_config(in);
  } else if (in.opcode == 0x49 && in.prefix == kNone && !in.memory && in.reg == 0 && in.rm == 0) {
    std::memset(&tiles, 0, sizeof tiles);
  } else if (in.opcode == 0x49 && in.prefix == kF2 && !in.memory && in.rm == 0) {
    configured(in, in.reg);
    std::memset(tiles.tile[in.reg], 0, sizeof tiles.tile[in.reg]);
  } else if (in.opcode == 0x4b && (in.prefix == kF2 || in.prefix == k66) && in.memory) {
    load(in);
  } else if (in.opcode == 0x4b && in.prefix == kF3 && in.memory) {
    store(in);
  } else {
    fail("an illegal instruction that is not emulated", in.code);
  }
  emulated.fetch_add(1, std::memory_order_relaxed);
  registers[REG_RIP] = greg_t(in.next);
}

}  // namespace

bool native() {
  unsigned a, b, c, d;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (kBf16 | kTile)) != (kBf16 | kTile)) return false;
  return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

void install() {
  struct sigaction action = {};
  action.sa_sigaction = handle;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, nullptr);
}

long count() { return emulated.load(); }

}  // namespace amx_emulator
