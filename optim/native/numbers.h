// Storage types, and the arithmetic on them that a compiler turns into vector code.

#ifndef DTOPT_NUMBERS_H_
#define DTOPT_NUMBERS_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "Eigen/Core"

namespace dtopt {

enum class BFloat16 : uint16_t {};  // the upper half of a float32

#ifdef __FLT16_MANT_DIG__
using Half = _Float16;
#else
using Half = Eigen::half;
#endif

inline float Load(float x) { return x; }
inline double Load(double x) { return x; }
inline float Load(Half x) { return static_cast<float>(x); }
inline float Load(BFloat16 x) {
  const uint32_t wide = static_cast<uint32_t>(x) << 16;
  float result;
  std::memcpy(&result, &wide, sizeof result);
  return result;
}

inline void Store(float x, float* to) { *to = x; }
inline void Store(double x, double* to) { *to = x; }
inline void Store(float x, Half* to) { *to = static_cast<Half>(x); }
inline void Store(float x, BFloat16* to) {
  uint32_t wide;
  std::memcpy(&wide, &x, sizeof wide);
  const uint32_t rounded = (wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16;  // to nearest, ties to even
  const uint32_t quiet = (wide >> 16) | 0x40u;                            // a NaN stays one
  *to = static_cast<BFloat16>(x != x ? quiet : rounded);
}

template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Nested choices, not `||`: the compiler turns them into vector code.

template <typename C>
inline C Max(C a, C b) {  // NaN if one of them is
  return a >= b ? a : a != a ? a : b;
}

template <typename C>
inline C Clip(C x, C limit) {  // NaN if x is
  return x > limit ? limit : x < -limit ? -limit : x;
}

}  // namespace dtopt

#endif  // DTOPT_NUMBERS_H_
