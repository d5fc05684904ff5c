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

// Reads numbers from a table, without the instruction that gathers: that takes three times as long on Intel's processors.
template <typename Number, typename Place>
__attribute__((noinline, optimize("no-tree-vectorize", "unroll-loops"))) void LookUp(const Number* __restrict table,
                                                                                     const Place* __restrict places,
                                                                                     Number* __restrict found,
                                                                                     int64_t size) {
  for (int64_t i = 0; i < size; ++i) found[i] = table[places[i]];
}

void Unpack(const DtoptBook& book, const uint8_t* __restrict codes, float scale, float* __restrict to, int64_t size) {
  LookUp(book.values, codes, to, size);
  for (int64_t i = 0; i < size; ++i) to[i] *= scale;
}

float Largest(const float* values, int64_t size) {  // of absolute values; a NaN if there is one, whose bits are above all
  int32_t found = 0;
  for (int64_t i = 0; i < size; ++i) {
    const int32_t bits = static_cast<int32_t>(Bits(values[i]) & 0x7fffffffu);
    found = bits > found ? bits : found;
  }
  return FromBits(static_cast<uint32_t>(found));
}

void Pack(const DtoptBook& book, const float* __restrict from, uint8_t* __restrict codes, float* scale, int64_t size) {
  const float largest = *scale = Largest(from, size);
  const bool is_usable = largest > 0 && largest < INFINITY;
  alignas(64) uint16_t places[kTerms];
  alignas(64) uint32_t rests[kTerms], found[kTerms];
  for (int64_t i = 0; i < size; ++i) {
    const uint32_t bits = Bits(is_usable ? from[i] / largest : 0.0f), magnitude = bits & 0x7fffffffu;
    const uint32_t smallest = static_cast<uint32_t>(kFirstStep) << 16, known = magnitude > smallest ? magnitude : smallest;
    const uint32_t sign = static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31);
    places[i] = static_cast<uint16_t>((known >> 16) - kFirstStep + (sign & kSteps));
    rests[i] = (known & 0xffffu) | (sign & 0xff0000u);
  }
  LookUp(book.steps, places, found, size);
  for (int64_t i = 0; i < size; ++i) {
    const uint32_t code = (found[i] + (rests[i] & 0xffffu)) >> 16;
    codes[i] = static_cast<uint8_t>(code ^ (rests[i] >> 16)) ^ book.flip;
  }
}

// A step of elements `begin` to `end` of one item, whose arrays may be stored in other types than it computes in.
class ItemStep {
 public:
  explicit ItemStep(const DtoptItem& item) : item_(item) {}

  void Run(int64_t begin, int64_t end) {
    if (item_.stored == nullptr) return Update(begin, end - begin, item_.variable + begin * item_.element);
    for (; begin < end; begin += kTerms) Packed(begin, end - begin < kTerms ? end - begin : kTerms);
  }

 private:
  static constexpr int64_t kMost = 16;  // slots

  void Update(int64_t begin, int64_t size, void* variable) {
    void* slots[kMost];
    for (int64_t k = 0; k < item_.slot_count; ++k) {
      const bool is_stored = item_.stored == nullptr || item_.stored[k].storage == kAsComputed;
      slots[k] = is_stored ? static_cast<void*>(item_.slots[k] + begin * Element(k)) : buffers_[k];
    }
    item_.update(variable, item_.gradient + begin * item_.wide, slots, item_.scalars, 1, INFINITY, item_.decay, size);
  }

  int64_t Element(int64_t k) const { return item_.stored == nullptr ? item_.element : item_.stored[k].element; }

  void Packed(int64_t begin, int64_t size) {
    const int64_t last = item_.slot_count;
    for (int64_t k = 0; k <= last; ++k) Read(item_.stored[k], At(k, begin), begin, buffers_[k], size);
    const bool is_stored = item_.stored[last].storage == kAsComputed;
    Update(begin, size, is_stored ? static_cast<void*>(At(last, begin)) : buffers_[last]);
    for (int64_t k = 0; k <= last; ++k) Write(item_.stored[k], buffers_[k], At(k, begin), begin, size);
  }

  char* At(int64_t k, int64_t begin) const {
    return (k == item_.slot_count ? item_.variable : item_.slots[k]) + begin * Element(k);
  }

  static void Read(const DtoptStored& of, const char* from, int64_t begin, float* to, int64_t size) {
    if (of.storage == kAsComputed) return;
    if (of.storage == kHalf) return Widen<Half>(reinterpret_cast<const Half*>(from), to, size);
    if (of.storage != kCodes) return Widen<BFloat16>(reinterpret_cast<const BFloat16*>(from), to, size);
    Unpack(*of.book, reinterpret_cast<const uint8_t*>(from), of.scales[begin / kTerms], to, size);
  }

  static void Write(const DtoptStored& of, const float* from, char* to, int64_t begin, int64_t size) {
    if (of.storage == kCodes) {
      return Pack(*of.book, from, reinterpret_cast<uint8_t*>(to), of.scales + begin / kTerms, size);
    }
    BFloat16* __restrict rounded = reinterpret_cast<BFloat16*>(to);
    if (of.storage == kHalf) Narrow<Half>(from, reinterpret_cast<Half*>(to), size);
    if (of.storage == kBFloat16) Narrow<BFloat16>(from, rounded, size);
    if (of.storage != kRandomBFloat16) return;
    const uint32_t key = static_cast<uint32_t>(of.key), first = static_cast<uint32_t>(begin);
    for (int64_t i = 0; i < size; ++i) Round(from[i], rounded + i, key, first + static_cast<uint32_t>(i));
  }

  const DtoptItem& item_;
  alignas(64) float buffers_[kMost + 1][kTerms];
};

constexpr int64_t kTaken = 1 << 16;  // elements that a thread takes at a time

}  // namespace

// Called through ctypes.
DTOPT_VISIBLE void DTOPT_NAME(steps, all, DTOPT_LEVEL)(const DtoptItem* items, int64_t count, int64_t* next) {
  int64_t length = 0;
  for (int64_t i = 0; i < count; ++i) length += items[i].size;
  for (int64_t begin; (begin = __atomic_fetch_add(next, kTaken, __ATOMIC_RELAXED)) < length;) {
    const int64_t end = begin + kTaken;
    int64_t start = 0;  // of the item: its elements from a multiple of kTerms on are of this block, as blocks of codes are
    for (int64_t i = 0; i < count && start < end; start += items[i++].size) {
      const auto cut = [&](int64_t at) {
        const int64_t up = at <= start ? 0 : (at - start + kTerms - 1) / kTerms * kTerms;
        return up < items[i].size ? up : items[i].size;
      };
      const int64_t from = cut(begin), to = cut(end);
      if (from < to) ItemStep(items[i]).Run(from, to);
    }
  }
}

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
