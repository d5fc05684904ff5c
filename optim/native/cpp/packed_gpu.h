// The kernel of a rule whose slots, or variables, are stored in few bits: the GPU's side of `Packing` in pieces.h.
//
// A block of threads has the elements that share a scale, and each thread 8 of them. Their new numbers stay in registers
// until all threads know the largest one.

#ifndef DTOPT_PACKED_GPU_H_
#define DTOPT_PACKED_GPU_H_

#include "gpu.h"
#include "packed.h"

#define DTOPT_EACH _Pragma("unroll") for (int j = 0; j < kAtOnce; ++j)

namespace {

constexpr int kPackedThreads = 256, kAtOnce = kCodedAtOnce / kPackedThreads;
static_assert(kAtOnce % kPerThread<float> == 0, "a rule's function has so many at a time");

// The argument of a kernel: `Launch`, and how arrays are stored.
template <int S, int K, int tensors>
struct PackedLaunch : Launch<float, S, K, tensors> {
  int storage[S + 1];                       // `DtoptStorage` of each slot, then of the variables
  int given[tensors];                       // that of each gradient
  const DtoptBook* book[S > 0 ? S : 1];     // of slots in codes, in device memory
  float* scales[S > 0 ? S : 1][tensors];    // of these, one for each block
  uint32_t key[S + 1][tensors];             // of the noise of each slot, then of the variables
};

// The bits of the numbers that one thread has of an array.
struct Words {
  uint32_t x[kAtOnce];
};

template <typename X>
DTOPT_FN X FromWord(uint32_t word) {
  const uint16_t bits = static_cast<uint16_t>(word);
  return *reinterpret_cast<const X*>(&bits);
}

template <typename X>
DTOPT_FN uint32_t ToWord(const X& x) {
  return *reinterpret_cast<const uint16_t*>(&x);
}

// Which numbers of each array one thread has: `count` of them, from number `first` on.
struct Portion {
  int64_t first;
  int count;

  DTOPT_FN void Read(int storage, const void* array, Words* to) const {
    if (storage == kAsComputed) ReadAs<uint32_t>(array, to);
    else if (storage == kCodes) ReadAs<uint8_t>(array, to);
    else ReadAs<uint16_t>(array, to);
  }

  DTOPT_FN void Write(int storage, const Words& from, void* array) const {
    if (storage == kAsComputed) WriteAs<uint32_t>(from, array);
    else if (storage == kCodes) WriteAs<uint8_t>(from, array);
    else WriteAs<uint16_t>(from, array);
  }

 private:
  template <typename X>
  DTOPT_FN void ReadAs(const void* array, Words* to) const {
    const X* const from = static_cast<const X*>(array) + first;
    Pack<X, kAtOnce> read = {};
    if (IsWhole(from)) {
      read = *reinterpret_cast<const Pack<X, kAtOnce>*>(from);
    } else {
      DTOPT_EACH {
        if (j < count) read.x[j] = from[j];
      }
    }
    DTOPT_EACH to->x[j] = read.x[j];
  }

  template <typename X>
  DTOPT_FN void WriteAs(const Words& from, void* array) const {
    X* const to = static_cast<X*>(array) + first;
    Pack<X, kAtOnce> written;
    DTOPT_EACH written.x[j] = static_cast<X>(from.x[j]);
    if (IsWhole(to)) {
      *reinterpret_cast<Pack<X, kAtOnce>*>(to) = written;
      return;
    }
    DTOPT_EACH {
      if (j < count) to[j] = written.x[j];
    }
  }

  template <typename X>
  DTOPT_FN bool IsWhole(const X* at) const {
    return count == kAtOnce && reinterpret_cast<uintptr_t>(at) % alignof(Pack<X, kAtOnce>) == 0;
  }
};

// The numbers that words stand for. book, scale: of codes.
DTOPT_FN void Decode(int storage, const Words& words, const DtoptBook* book, float scale, float* to) {
  if (storage == kAsComputed) {
    DTOPT_EACH to[j] = FromBits(words.x[j]);
  } else if (storage == kHalf) {
    DTOPT_EACH to[j] = Load(FromWord<Half>(words.x[j]));
  } else if (storage != kCodes) {
    DTOPT_EACH to[j] = Load(FromWord<BFloat16>(words.x[j]));
  } else {
    DTOPT_EACH to[j] = book->values[words.x[j]] * scale;
  }
}

// The byte of a number's code, as `Pack` of basics.cc has it. largest: of the block; not usable if it is zero or not finite.
DTOPT_FN uint32_t CodeOf(float x, const DtoptBook& book, float largest) {
  const bool is_usable = largest > 0 && largest < INFINITY;
  const uint32_t bits = Bits(is_usable ? x / largest : 0.0f), magnitude = bits & 0x7fffffffu;
  const uint32_t smallest = static_cast<uint32_t>(kFirstStep) << 16, known = magnitude > smallest ? magnitude : smallest;
  const bool is_negative = bits >> 31 != 0;
  const uint32_t step = book.steps[(known >> 16) - kFirstStep + (is_negative ? kSteps : 0)];
  const uint32_t code = (step + (known & 0xffffu)) >> 16;
  return (is_negative ? 255 - code : code) ^ book.flip;
}

// The words of numbers that are no codes. key, first: of their noise.
DTOPT_FN void Encode(int storage, const float* from, uint32_t key, int64_t first, Words* to) {
  if (storage == kAsComputed) {
    DTOPT_EACH to->x[j] = Bits(from[j]);
  } else if (storage == kHalf) {
    Half half;
    DTOPT_EACH {
      Store(from[j], &half);
      to->x[j] = ToWord(half);
    }
  } else {
    BFloat16 rounded;
    DTOPT_EACH {
      if (storage == kRandomBFloat16) Round(from[j], &rounded, key, static_cast<uint32_t>(first + j));
      else Store(from[j], &rounded);
      to->x[j] = ToWord(rounded);
    }
  }
}

// The largest absolute value of some numbers, as bits, of which those of a NaN are above all.
DTOPT_FN uint32_t Largest(const float* values, int count) {
  uint32_t largest = 0;
  DTOPT_EACH {
    const uint32_t bits = Bits(values[j]) & 0x7fffffffu;
    if (j < count && bits > largest) largest = bits;
  }
  return largest;
}

// All threads of a block get the largest of each of their numbers.
template <int count>
DTOPT_FN void ShareLargest(uint32_t (&numbers)[count]) {
  __shared__ uint32_t largest[count];
  const int thread = threadIdx.x;
  if (thread < count) largest[thread] = 0;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < count; ++k) {
#pragma unroll
    for (int width = 16; width > 0; width /= 2) {
      const uint32_t other = __shfl_xor_sync(0xffffffffu, numbers[k], width);
      if (other > numbers[k]) numbers[k] = other;
    }
    if (thread % 32 == 0) atomicMax(&largest[k], numbers[k]);
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < count; ++k) numbers[k] = largest[k];
}

// Stores the variable, and what is made of it: its average, and the rounding of a master copy.
template <int S, int K, int tensors>
DTOPT_FN void StoreVariable(const PackedLaunch<S, K, tensors>& all, int at, const Portion& part, float* values) {
  const int storage = all.storage[S];
  Words words;
  Encode(storage, values, all.key[S][at], part.first, &words);
  if (all.average[at] != nullptr) {
    const float old_weight = static_cast<float>(all.average_weight), new_weight = static_cast<float>(all.value_weight);
    Words average;
    float averages[kAtOnce];
    Decode(storage, words, nullptr, 0, values);
    part.Read(storage, all.average[at], &average);
    Decode(storage, average, nullptr, 0, averages);
    DTOPT_EACH averages[j] = old_weight * averages[j] + new_weight * values[j];
    Encode(storage == kRandomBFloat16 ? kBFloat16 : storage, averages, 0, 0, &average);
    part.Write(storage, average, all.average[at]);
    if (all.overwrites) words = average;
  }
  part.Write(storage, words, all.variable[at]);
  if (all.rounding_type == kNotRounded) return;
  const int rounded = all.rounding_type == kToBFloat16 ? kBFloat16 : kHalf;
  Decode(storage, words, nullptr, 0, values);
  Encode(rounded, values, 0, 0, &words);
  part.Write(rounded, words, all.rounding[at]);
}

template <int S, int K, int tensors>
DTOPT_FN void StoreSlot(const PackedLaunch<S, K, tensors>& all, int k, int at, const Portion& part, const float* values,
                        float largest) {
  const int storage = all.storage[k];
  Words words;
  if (storage == kCodes) {
    DTOPT_EACH words.x[j] = CodeOf(values[j], *all.book[k], largest);
  } else {
    Encode(storage, values, all.key[k][at], part.first, &words);
  }
  part.Write(storage, words, all.slots[k][at]);
}

// What one thread does. No thread returns before the others know its numbers.
template <typename Rule, int S, int K, int tensors>
DTOPT_FN void UpdatePacked(const PackedLaunch<S, K, tensors>& all) {
  if (IsSkipped(all)) return;
  const int at = VariableOf(all, blockIdx.x);
  const int64_t block = blockIdx.x - all.first[at], first = block * kCodedAtOnce + kAtOnce * threadIdx.x;
  const int64_t rest = all.size[at] - first;
  const Portion part = {first, rest < 0 ? 0 : rest < kAtOnce ? static_cast<int>(rest) : kAtOnce};
  const Arrays<float, float, S, K, tensors> numbers(all, at);
  float w[kAtOnce], g[kAtOnce], s[S > 0 ? S : 1][kAtOnce];
  const auto read = [&](int storage, const void* array, const DtoptBook* book, float scale, float* to) {
    Words words;
    part.Read(storage, array, &words);
    Decode(storage, words, book, scale, to);
  };
  read(all.storage[S], all.variable[at], nullptr, 0, w);
  read(all.given[at], all.gradient[at], nullptr, 0, g);
#pragma unroll
  for (int k = 0; k < S; ++k) {
    const float scale = all.storage[k] == kCodes ? all.scales[k][at][block] : 0;
    read(all.storage[k], all.slots[k][at], all.book[k], scale, s[k]);
  }
#pragma unroll
  for (int j = 0; j < kAtOnce; j += kPerThread<float>) {
    void* local[S > 0 ? S : 1];
#pragma unroll
    for (int k = 0; k < S; ++k) local[k] = s[k] + j;
    Rule::template Run<float>(w + j, g + j, local, all.scalars, numbers.scale, numbers.limit, numbers.decay);
  }
  uint32_t largest[S > 0 ? S : 1] = {};
  bool has_codes = false;
#pragma unroll
  for (int k = 0; k < S; ++k) {
    if (all.storage[k] != kCodes) continue;
    has_codes = true;
    largest[k] = Largest(s[k], part.count);
  }
  if (has_codes) ShareLargest(largest);  // all threads of a block, or none
#pragma unroll
  for (int k = 0; k < S; ++k) {
    StoreSlot(all, k, at, part, s[k], FromBits(largest[k]));
    if (all.storage[k] == kCodes && threadIdx.x == 0) all.scales[k][at][block] = FromBits(largest[k]);
  }
  StoreVariable(all, at, part, w);
}

}  // namespace

// The kernel of a rule for variables of any dtype that is computed in float32, with gradients of any of these.
#define DTOPT_PACKED_KERNEL(kernel, rule, S, K, tensors)                                              \
  using kernel##_launch = PackedLaunch<S, K, tensors>;                                                \
  extern "C" __global__ void __launch_bounds__(kPackedThreads, S < 4 ? 3 : 2) kernel(DTOPT_ARGUMENT kernel##_launch all) { \
    UpdatePacked<rule##_rule>(all);                                                                   \
  }                                                                                                   \
  DTOPT_EMULATED_TOGETHER(kernel, kPackedThreads, kernel##_launch, UpdatePacked<rule##_rule>)

#endif  // DTOPT_PACKED_GPU_H_
