// What steps need beside the rules: averages, norms, and conversions between storage and arithmetic.

#include "math.h"

namespace {

template <typename T>
void Average(T* __restrict average, const T* __restrict variable, Wide<T> old_weight, Wide<T> new_weight,
             int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    Store(old_weight * Load(average[i]) + new_weight * Load(variable[i]), average + i);
  }
}

template <typename T>
double Squares(const T* values, int64_t size) {
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) {
      const double x = Load(values[i + k]);
      sums[k] += x * x;
    }
  }
  for (; i < size; ++i) {
    const double x = Load(values[i]);
    sums[i % kLanes] += x * x;
  }
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t k = 0; k < width; ++k) sums[k] += sums[k + width];
  }
  return sums[0];
}

template <typename T>
void Widen(const T* __restrict from, Wide<T>* __restrict to, int64_t size) {
  for (int64_t i = 0; i < size; ++i) to[i] = Load(from[i]);
}

template <typename T>
void Narrow(const Wide<T>* __restrict from, T* __restrict to, int64_t size) {
  for (int64_t i = 0; i < size; ++i) Store(from[i], to + i);
}

template <typename T>
void Add(const T* __restrict values, Wide<T>* __restrict sum, int64_t size) {
  for (int64_t i = 0; i < size; ++i) sum[i] += Load(values[i]);
}

template <typename T>
void AddSquare(const T* __restrict values, Wide<T>* __restrict sum, int64_t size) {
  for (int64_t i = 0; i < size; ++i) sum[i] += Square(Load(values[i]));
}

template <typename T>
void AddAbs(const T* __restrict values, Wide<T>* __restrict sum, int64_t size) {
  for (int64_t i = 0; i < size; ++i) sum[i] += std::abs(Load(values[i]));
}

}  // namespace

#define DTOPT_ADDING(name, function, T, dtype)                                                                   \
  DTOPT_VISIBLE void DTOPT_NAME(name, dtype, DTOPT_LEVEL)(const void* values, void* sum, int64_t size) {         \
    function<T>(static_cast<const T*>(values), static_cast<Wide<T>*>(sum), size);                                \
  }
#define DTOPT_BASICS(T, dtype)                                                                                   \
  DTOPT_VISIBLE void DTOPT_NAME(average, dtype, DTOPT_LEVEL)(void* average, const void* variable,                \
                                                             double old_weight, double new_weight,               \
                                                             int64_t size) {                                     \
    Average<T>(static_cast<T*>(average), static_cast<const T*>(variable), static_cast<Wide<T>>(old_weight),      \
               static_cast<Wide<T>>(new_weight), size);                                                          \
  }                                                                                                              \
  DTOPT_VISIBLE double DTOPT_NAME(squares, dtype, DTOPT_LEVEL)(const void* values, int64_t size) {               \
    return Squares<T>(static_cast<const T*>(values), size);                                                      \
  }                                                                                                              \
  DTOPT_VISIBLE void DTOPT_NAME(widen, dtype, DTOPT_LEVEL)(const void* from, void* to, int64_t size) {           \
    Widen<T>(static_cast<const T*>(from), static_cast<Wide<T>*>(to), size);                                      \
  }                                                                                                              \
  DTOPT_VISIBLE void DTOPT_NAME(narrow, dtype, DTOPT_LEVEL)(const void* from, void* to, int64_t size) {          \
    Narrow<T>(static_cast<const Wide<T>*>(from), static_cast<T*>(to), size);                                     \
  }                                                                                                              \
  DTOPT_ADDING(add, Add, T, dtype)                                                                               \
  DTOPT_ADDING(add_square, AddSquare, T, dtype)                                                                  \
  DTOPT_ADDING(add_abs, AddAbs, T, dtype)

DTOPT_BASICS(float, float32)
DTOPT_BASICS(double, float64)
DTOPT_BASICS(BFloat16, bfloat16)
DTOPT_BASICS(Half, float16)
