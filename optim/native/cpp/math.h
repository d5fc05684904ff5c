// What turns the text of traced rules into functions for CPUs: their loops, their signatures, and what they export.

#ifndef DTOPT_MATH_H_
#define DTOPT_MATH_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "abi.h"

#define DTOPT_FN inline

namespace {

inline float FromBits(uint32_t bits) {
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

inline uint32_t Bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

}  // namespace

#include "arithmetic.h"

namespace {

// Several arrays are more than Intel's processors foresee by themselves: there elements are visited in strides, and what
// lies kAhead elements ahead is asked for at each. Without it a step takes a fifth longer there, and with it a tenth
// longer on AMD's.
constexpr int64_t kAsked = 64, kAhead = 512, kCacheLine = 64;  // the last in bytes
#ifdef __x86_64__
const bool kAsks = __builtin_cpu_is("intel");
#else
constexpr bool kAsks = false;
#endif
const int64_t kStride = kAsks ? kAsked : INT64_MAX / 2;

template <typename T>
inline void AskFor(const T* elements) {
  for (int64_t byte = 0; byte < kAsked * static_cast<int64_t>(sizeof(T)); byte += kCacheLine) {
    __builtin_prefetch(reinterpret_cast<const char*>(elements) + byte, 1);
  }
}

// Where the stride ends.
template <typename... T>
inline int64_t Stride(int64_t start, int64_t size, const T*... arrays) {
  if (kAsks && start + kAhead < size) (AskFor(arrays + start + kAhead), ...);
  return start + kStride < size ? start + kStride : size;
}

constexpr int64_t kLanes = 32;

template <typename C>
double Sum(const C* values, int64_t size) {
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) sums[k] += values[i + k];
  }
  for (; i < size; ++i) sums[i % kLanes] += values[i];
  int64_t width = kLanes / 2;
  while (width >= size && width > 0) width /= 2;  // of a short row the other lanes are zero
  for (; width > 0; width /= 2) {
    for (int64_t k = 0; k < width; ++k) sums[k] += sums[k + width];
  }
  return sums[0];
}

}  // namespace

// DTOPT_LEVEL ends the names of all functions: one file is compiled for several instruction sets.
#define DTOPT_JOIN(a, b, c) dtopt_##a##_##b##_##c
#define DTOPT_NAME(a, b, c) DTOPT_JOIN(a, b, c)
#define DTOPT_VISIBLE extern "C" __attribute__((visibility("default"), used))

#define DTOPT_UPDATE(name)                                                                                      \
  void name##_run(T* __restrict variable, const Wide<T>* __restrict gradient, void* const* slots,               \
                  const double* scalars, Wide<T> scale, Wide<T> limit, Wide<T> decay, int64_t size)
#define DTOPT_SUMS(name)                                                                                        \
  void name##_run(const T* __restrict variable, const Wide<T>* __restrict gradient, void* const* slots,    \
                       const double* scalars, Wide<T> scale, Wide<T> limit, Wide<T> decay, int64_t size, double* sums)
#define DTOPT_STORES(name) void name##_run(void* const* slots, const double* scalars, int64_t size)
#define DTOPT_ELEMENTS(...)                                        \
  for (int64_t start = 0; start < size; start += kStride)          \
    for (int64_t i = start, end = Stride(start, size, __VA_ARGS__); i < end; ++i)
#define DTOPT_GRADIENT Clip(gradient[i] * scale, limit)
#define DTOPT_VARIABLE Load(variable[i]) * decay  // 1 changes nothing, nor does a limit of infinity

#define DTOPT_EXPORT_ALL(EXPORT_AS, name) \
  EXPORT_AS(name, float, float32)         \
  EXPORT_AS(name, double, float64)        \
  EXPORT_AS(name, BFloat16, bfloat16)     \
  EXPORT_AS(name, Half, float16)

#define DTOPT_EXPORT_UPDATE_AS(name, T, dtype)                                                                  \
  DTOPT_VISIBLE void DTOPT_NAME(name, dtype, DTOPT_LEVEL)(void* variable, const void* gradient,                 \
                                                          void* const* slots, const double* scalars,            \
                                                          double scale, double limit, double decay,             \
                                                          int64_t size) {                                       \
    name##_run<T>(static_cast<T*>(variable), static_cast<const Wide<T>*>(gradient), slots, scalars,             \
                  static_cast<Wide<T>>(scale), static_cast<Wide<T>>(limit), static_cast<Wide<T>>(decay), size); \
  }
#define DTOPT_EXPORT_UPDATE(name) DTOPT_EXPORT_ALL(DTOPT_EXPORT_UPDATE_AS, name)

#define DTOPT_EXPORT_SUMS_AS(name, T, dtype)                                                                   \
  DTOPT_VISIBLE void DTOPT_NAME(name, dtype, DTOPT_LEVEL)(const void* variable, const void* gradient,          \
                                                          void* const* slots, const double* scalars,           \
                                                          double scale, double limit, double decay,            \
                                                          int64_t size, double* sums) {                        \
    name##_run<T>(static_cast<const T*>(variable), static_cast<const Wide<T>*>(gradient), slots, scalars,      \
                  static_cast<Wide<T>>(scale), static_cast<Wide<T>>(limit), static_cast<Wide<T>>(decay), size, \
                  sums);                                                                                       \
  }
#define DTOPT_EXPORT_SUMS(name) DTOPT_EXPORT_ALL(DTOPT_EXPORT_SUMS_AS, name)

#define DTOPT_EXPORT_STORES_AS(name, T, dtype)                                                                   \
  DTOPT_VISIBLE void DTOPT_NAME(name, dtype, DTOPT_LEVEL)(void* const* slots, const double* scalars, int64_t size) { \
    name##_run<T>(slots, scalars, size);                                                                         \
  }
#define DTOPT_EXPORT_STORES(name) DTOPT_EXPORT_ALL(DTOPT_EXPORT_STORES_AS, name)

#endif  // DTOPT_MATH_H_
