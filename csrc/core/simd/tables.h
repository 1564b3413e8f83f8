// The numbers of log and exp by tables, for instruction sets that look up 32 floats or 16 doubles at once (AVX-512).
// `python -m tools.simd_tables` computes them.
//
// The logarithm:
//
//   a = 2^e m,  m in [3/4, 3/2);   log a = e ln 2 + log c + log(1 + z),  z = m / c - 1
//
// The first bits of m say in which cell it is, and c is a number near the middle of the cell. ln 2 is the sum of two
// numbers. The first one and log c are multiples of 2^-17 (float) or 2^-43 (double), so that e ln 2 + log c does not
// round. c is such that its logarithm is close to a multiple: within 2^-32 or 2^-65. The cells beside m = 1 have c = 1:
// where log a is near 0 its relative error is that of log(1 + z).
//
// The exponential function:
//
//   exp p = 2^n exp t,  n a multiple of 1 / 32 (float) or 1 / 16 (double), |t| <= ln 2 / 64 or ln 2 / 32
//
// The table has 2^n for the fractions of n. n times the first part of ln 2 does not round.
#pragma once

#include "simd/simd.h"

namespace npu {
namespace NPU_ISA {

template <typename T>
struct LogTable;

template <>
struct LogTable<float> {
  static constexpr int kShift = 18;  // of the bits of m: the lowest ones are then the number of the cell
  alignas(64) static constexpr float kReciprocal[] = {
      0x1p0f,         0x1.ec00a8p-1f, 0x1.dc87d8p-1f, 0x1.ceff92p-1f, 0x1.c172ecp-1f, 0x1.b56d08p-1f, 0x1.aa0102p-1f,
      0x1.9fce36p-1f, 0x1.94d24ap-1f, 0x1.8b3ac8p-1f, 0x1.818612p-1f, 0x1.788a96p-1f, 0x1.6f4d84p-1f, 0x1.68b94ap-1f,
      0x1.607bb6p-1f, 0x1.5913f8p-1f, 0x1.513c4ep0f,  0x1.4adfd6p0f,  0x1.446868p0f,  0x1.3e23f8p0f,  0x1.37d5b6p0f,
      0x1.32037p0f,   0x1.2bdf62p0f,  0x1.2726c4p0f,  0x1.21a79ep0f,  0x1.1c483ap0f,  0x1.17a08ep0f,  0x1.1320dp0f,
      0x1.0e8d04p0f,  0x1.093672p0f,  0x1.05154p0f,   0x1p0f};
  alignas(64) static constexpr float kLog[] = {
      0x0p0f,        0x1.466p-5f,   0x1.261p-4f,   0x1.9c1p-4f,   0x1.0adcp-3f,  0x1.4264p-3f,  0x1.7894p-3f,
      0x1.aa34p-3f,  0x1.e108p-3f,  0x1.0912p-2f,  0x1.2288p-2f,  0x1.3aacp-2f,  0x1.541cp-2f,  0x1.669ep-2f,
      0x1.7e48p-2f,  0x1.9406p-2f,  -0x1.1a38p-2f, -0x1.06b8p-2f, -0x1.e504p-3f, -0x1.bd1p-3f,  -0x1.941p-3f,
      -0x1.6d78p-3f, -0x1.43f4p-3f, -0x1.2374p-3f, -0x1.f9e8p-4f, -0x1.ad38p-4f, -0x1.6998p-4f, -0x1.2728p-4f,
      -0x1.c4ep-5f,  -0x1.21ap-5f,  -0x1.422p-6f,  0x0p0f};
  static constexpr float kFactors[] = {-0x1.000012p-1f, 0x1.55613ap-2f, -0x1.f6a8ep-3f};
  static constexpr float kLn2[] = {0x1.62e4p-1f, 0x1.7f7d1cp-20f};
};

template <>
struct LogTable<double> {
  static constexpr int kShift = 48;  // of the bits of m: the lowest ones are then the number of the cell
  alignas(64) static constexpr double kReciprocal[] = {0x1p0,
                                                       0x1.d87059b40163ep-1,
                                                       0x1.bd0e65866cbffp-1,
                                                       0x1.a5818ccf0ef12p-1,
                                                       0x1.90929606a7e73p-1,
                                                       0x1.7db905f66f29cp-1,
                                                       0x1.6c9e149ab8339p-1,
                                                       0x1.5d01cdf6ffda7p-1,
                                                       0x1.4dd8d74c0b6d6p0,
                                                       0x1.40b65584269c7p0,
                                                       0x1.348cd44064d2p0,
                                                       0x1.293e3fe2b0539p0,
                                                       0x1.1ead827d3154p0,
                                                       0x1.14b8245bd63c1p0,
                                                       0x1.0b195ae00684bp0,
                                                       0x1p0};
  alignas(64) static constexpr double kLog[] = {0x0p0,
                                                0x1.496290b346p-4,
                                                0x1.1ef951beeep-3,
                                                0x1.8e5106b6bcp-3,
                                                0x1.f6a3caedfp-3,
                                                0x1.2cad5c9a9ap-2,
                                                0x1.5b9f88ac058p-2,
                                                0x1.886e1a137f8p-2,
                                                -0x1.0fe0aa257cp-2,
                                                -0x1.cd8d209d4dp-3,
                                                -0x1.7e60265cbep-3,
                                                -0x1.31ea8473ffp-3,
                                                -0x1.cf974badb8p-4,
                                                -0x1.3ec6b1960ap-4,
                                                -0x1.5baf84cd98p-5,
                                                0x0p0};
  static constexpr double kFactors[] = {-0x1.fffffffffffffp-2, 0x1.5555555555a3ap-2,  -0x1.000000000419p-2,
                                        0x1.999999898ca88p-3,  -0x1.55555443d9487p-3, 0x1.2492b09e0fc2dp-3,
                                        -0x1.0009a59a92b8ep-3, 0x1.c5ea4752e2c4ep-4,  -0x1.6a3df3a2d0318p-4};
  static constexpr double kLn2[] = {0x1.62e42fefa38p-1, 0x1.ef35793c7673p-45};
};

template <typename T>
struct ExpTable;

template <>
struct ExpTable<float> {
  alignas(64) static constexpr float kPowers[] = {
      0x1p0f,        0x1.059b0ep0f, 0x1.0b5586p0f, 0x1.11301ep0f, 0x1.172b84p0f, 0x1.1d4874p0f, 0x1.2387a6p0f,
      0x1.29e9ep0f,  0x1.306fep0f,  0x1.371a74p0f, 0x1.3dea64p0f, 0x1.44e086p0f, 0x1.4bfdaep0f, 0x1.5342b6p0f,
      0x1.5ab07ep0f, 0x1.6247ecp0f, 0x1.6a09e6p0f, 0x1.71f75ep0f, 0x1.7a1148p0f, 0x1.82589ap0f, 0x1.8ace54p0f,
      0x1.93737cp0f, 0x1.9c4918p0f, 0x1.a5503cp0f, 0x1.ae89fap0f, 0x1.b7f77p0f,  0x1.c199bep0f, 0x1.cb720ep0f,
      0x1.d5818ep0f, 0x1.dfc974p0f, 0x1.ea4afap0f, 0x1.f50766p0f};
  static constexpr float kFactors[] = {0x1p-1f, 0x1.555556p-3f};
};

template <>
struct ExpTable<double> {
  alignas(64) static constexpr double kPowers[] = {0x1p0,
                                                   0x1.0b5586cf9890fp0,
                                                   0x1.172b83c7d517bp0,
                                                   0x1.2387a6e756238p0,
                                                   0x1.306fe0a31b715p0,
                                                   0x1.3dea64c123422p0,
                                                   0x1.4bfdad5362a27p0,
                                                   0x1.5ab07dd485429p0,
                                                   0x1.6a09e667f3bcdp0,
                                                   0x1.7a11473eb0187p0,
                                                   0x1.8ace5422aa0dbp0,
                                                   0x1.9c49182a3f09p0,
                                                   0x1.ae89f995ad3adp0,
                                                   0x1.c199bdd85529cp0,
                                                   0x1.d5818dcfba487p0,
                                                   0x1.ea4afa2a490dap0};
  static constexpr double kFactors[] = {0x1p-1,
                                        0x1.5555555555555p-3,
                                        0x1.5555555555555p-5,
                                        0x1.1111111111111p-7,
                                        0x1.6c16c16c16c17p-10,
                                        0x1.a01a01a01a01ap-13};
};

}  // namespace NPU_ISA
}  // namespace npu
