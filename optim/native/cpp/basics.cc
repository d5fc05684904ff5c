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

void Unpack(const DtoptBook& book, const uint8_t* __restrict codes, float scale, float* __restrict to, int64_t size) {
  for (int64_t i = 0; i < size; ++i) to[i] = book.values[codes[i]] * scale;
}

float Largest(const float* values, int64_t size) {  // of absolute values; a NaN if there is one, whose bits are above all
  int32_t found = 0;
  for (int64_t i = 0; i < size; ++i) {
    const int32_t bits = static_cast<int32_t>(Bits(values[i]) & 0x7fffffffu);
    found = bits > found ? bits : found;
  }
  return FromBits(static_cast<uint32_t>(found));
}

// Of the seven decades: where each ends, what brings it to the first, and its parts next to those of the first.
constexpr float kEdges[] = {1, 1e-1f, 1e-2f, 1e-3f, 1e-4f, 1e-5f, 1e-6f};
constexpr float kTens[] = {1, 1e1f, 1e2f, 1e3f, 1e4f, 1e5f, 1e6f};
constexpr float kHalves[] = {1, 0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f};

void Pack(const DtoptBook& book, const float* __restrict from, uint8_t* __restrict codes, float* scale, int64_t size) {
  const float largest = *scale = Largest(from, size);
  const bool is_usable = largest > 0 && largest < INFINITY;
  alignas(64) float shares[kTerms];
  alignas(64) int32_t places[kTerms];
  for (int64_t i = 0; i < size; ++i) shares[i] = is_usable ? from[i] / largest : 0.0f;
  const float* __restrict borders = book.borders;
  const float top = static_cast<float>(book.parts);
  const int32_t zero = book.zero;
  for (int64_t i = 0; i < size; ++i) {  // the decade, the part of it, and then one code up or down
    const float x = shares[i], a = std::abs(x);
    float tens = 1, parts = top;
    for (int decade = 1; decade < 7; ++decade) {
      const bool is_below = a < kEdges[decade];
      tens = is_below ? kTens[decade] : tens;
      parts = is_below ? top * kHalves[decade] : parts;
    }
    const float place = (a * tens - 0.1f) * (parts * (1 / 0.9f)), last = 2 * parts - 1;
    const float found = parts + (place > 0 ? place : 0.0f);
    const int32_t magnitude = static_cast<int32_t>(found < last ? found : last);
    const int32_t guess = x < 0 ? zero - magnitude : zero + magnitude, near = guess > 0 ? guess : 0;
    places[i] = near - 1 + (borders[near] < x) + (borders[near + 1] < x);
  }
  for (int64_t i = 0; i < size; ++i) codes[i] = static_cast<uint8_t>(places[i]) ^ book.flip;
}

}  // namespace

DTOPT_VISIBLE void DTOPT_NAME(round, bfloat16, DTOPT_LEVEL)(const void* from, void* to, uint32_t key, uint32_t first,
                                                            int64_t size) {
  const float* __restrict x = static_cast<const float*>(from);
  BFloat16* __restrict rounded = static_cast<BFloat16*>(to);
  for (int64_t i = 0; i < size; ++i) Round(x[i], rounded + i, key, first + static_cast<uint32_t>(i));
}
DTOPT_VISIBLE void DTOPT_NAME(unpack, float32, DTOPT_LEVEL)(const DtoptBook* book, const void* codes,
                                                            const float* scale, float* to, int64_t size) {
  Unpack(*book, static_cast<const uint8_t*>(codes), *scale, to, size);
}
DTOPT_VISIBLE void DTOPT_NAME(pack, float32, DTOPT_LEVEL)(const DtoptBook* book, const float* from, void* codes,
                                                          float* scale, int64_t size) {
  Pack(*book, from, static_cast<uint8_t*>(codes), scale, size);
}

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
