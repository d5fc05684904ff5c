// Storage types and the arithmetic of traced rules, for CPUs and GPUs. Nothing here needs TensorFlow.
//
// float32 and float64 are computed in themselves, bfloat16 and float16 in float32; scalars arrive in float64 and are
// rounded once. Every operation is IEEE's, none is contracted (see the flags in build.py and cuda.py), so a result
// depends neither on where a tensor is cut nor on the processor. NaN and infinity spread as in TensorFlow's ops.
// Whoever includes this has the C library's maths, integer types, and FromBits and Bits.

#ifndef DTOPT_ARITHMETIC_H_
#define DTOPT_ARITHMETIC_H_

namespace {

enum class BFloat16 : uint16_t {};  // the upper half of a float32

DTOPT_FN float Load(float x) { return x; }
DTOPT_FN double Load(double x) { return x; }
DTOPT_FN float Load(BFloat16 x) { return FromBits(static_cast<uint32_t>(x) << 16); }

DTOPT_FN void Store(float x, float* to) { *to = x; }
DTOPT_FN void Store(double x, double* to) { *to = x; }
DTOPT_FN void Store(float x, BFloat16* to) {
  const uint32_t wide = Bits(x);
  const uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;  // to nearest, ties to even
  const uint32_t quiet = (wide >> 16) | 0x40u;                            // a NaN stays one
  *to = static_cast<BFloat16>(x != x ? quiet : rounded);
}

// A hash of 32 bits, the noise of element `index` of an array, and what it makes of a number: as optim/bits/noise.py says.
DTOPT_FN uint32_t Mix(uint32_t x) {
  x += 0x9e3779b9u;
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

DTOPT_FN void Round(float x, BFloat16* to, uint32_t key, uint32_t index) {
  BFloat16 nearest;
  Store(x, &nearest);
  const uint32_t wide = Bits(x), chosen = (wide + (Mix(Mix(index) ^ key) >> 16)) >> 16;
  *to = (wide & 0x7f800000u) == 0x7f800000u ? nearest : static_cast<BFloat16>(chosen);
}

#ifdef DTOPT_GPU
enum class Half : uint16_t {};

DTOPT_FN float Load(Half x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(static_cast<uint16_t>(x)));
  return result;
}

DTOPT_FN void Store(float x, Half* to) {
  uint16_t result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(x));
  *to = static_cast<Half>(result);
}
#elif defined(__FLT16_MANT_DIG__)
using Half = _Float16;
DTOPT_FN float Load(Half x) { return static_cast<float>(x); }
DTOPT_FN void Store(float x, Half* to) { *to = static_cast<Half>(x); }
#else
enum class Half : uint16_t {};  // for compilers without the type

DTOPT_FN float Load(Half x) {
  const uint32_t bits = static_cast<uint32_t>(x), sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return FromBits(sign | 0x7f800000u | (rest & 0x3ffu) << 13 | (rest > 0x7c00u ? 0x400000u : 0));
  if (rest < 0x400u) {  // a multiple of 2^-24
    const float value = static_cast<float>(rest) * 0x1p-24f;
    return FromBits(Bits(value) | sign);
  }
  return FromBits(sign | ((rest << 13) + (112u << 23)));
}

DTOPT_FN void Store(float x, Half* to) {
  const uint32_t bits = Bits(x), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
  uint32_t result;
  if (rest > 0x7f800000u) result = 0x7e00u | (rest >> 13 & 0x3ffu);
  else if (rest >= 0x477ff000u) result = 0x7c00u;
  else if (rest < 0x38800000u) result = Bits(FromBits(rest) + 0.5f) - 0x3f000000u;  // rounds to a multiple of 2^-24
  else result = (rest - (112u << 23) + 0xfffu + (rest >> 13 & 1u)) >> 13;
  *to = static_cast<Half>(sign | result);
}
#endif

template <typename T>
struct WideOf {
  using Type = float;
};
template <>
struct WideOf<double> {
  using Type = double;
};
template <typename T>
using Wide = typename WideOf<T>::Type;

// Nested choices, not `||`: the compiler turns them into vector code.

template <typename C>
DTOPT_FN C Max(C a, C b) {  // NaN if one of them is
  return a >= b ? a : a != a ? a : b;
}

template <typename C>
DTOPT_FN C Min(C a, C b) {
  return a <= b ? a : a != a ? a : b;
}

template <typename C>
DTOPT_FN C Clip(C x, C limit) {  // NaN if x is; in these forms each choice is one instruction
  const C low = limit < x ? limit : x;
  return -limit > low ? -limit : low;
}

template <typename C>
DTOPT_FN C Square(C x) {
  return x * x;
}

template <typename C>
DTOPT_FN C Sign(C x) {  // that of 0 is 0 and that of NaN is NaN
  return x > 0 ? C(1) : x < 0 ? C(-1) : x;
}

template <typename C>
DTOPT_FN C Power(C x, C exponent) {  // a square root has one rounding only
  return exponent == C(0.5) ? std::sqrt(x) : std::pow(x, exponent);
}

}  // namespace

#endif  // DTOPT_ARITHMETIC_H_
