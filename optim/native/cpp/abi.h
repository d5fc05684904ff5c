// What the library of the rules' maths and the library of the ops know of each other: plain C functions on buffers.

#ifndef DTOPT_ABI_H_
#define DTOPT_ABI_H_

#include <cstdint>

#include "packed.h"

// In all of these `size` counts elements, T is the storage type of variables and slots, and "wide" the type in which
// they are computed: float64 for float64, float32 for all others.

extern "C" {

// One step of a run of elements: the gradient (wide) is scaled and clipped to +-limit, the variable decays, and the
// rule updates variable and slots. Buffers never overlap.
typedef void (*DtoptUpdate)(void* variable, const void* gradient, void* const* slots, const double* scalars,
                            double scale, double limit, double decay, int64_t size);

// What a rule adds up over the whole variable, its rows or its columns, for its update, of a run of at most kTerms
// elements, rows or columns. Sums of all of them are added to `sums`, in float64, always in the same order; sums of
// columns to arrays behind the slots. Nothing else is changed. What slots and scalars are: see whole.h.
constexpr int64_t kTerms = kCodedAtOnce;
typedef void (*DtoptSums)(const void* variable, const void* gradient, void* const* slots, const double* scalars,
                          double scale, double limit, double decay, int64_t size, double* sums);

// Of slots that have fewer dims than the variable: stores a run of the new ones.
typedef void (*DtoptStores)(void* const* slots, const double* scalars, int64_t size);

// average = old_weight * average + new_weight * variable.
typedef void (*DtoptAverage)(void* average, const void* variable, double old_weight, double new_weight, int64_t size);

// The sum of squares, in float64, always added up in the same order.
typedef double (*DtoptSquares)(const void* values, int64_t size);

// Between T and wide; from wide, rounded to nearest.
typedef void (*DtoptConvert)(const void* from, void* to, int64_t size);

// From wide to bfloat16, rounded up or down at random, so that the mean of all outcomes is the number: with the noise of
// an array's elements from number `first` on, see arithmetic.h.
typedef void (*DtoptRound)(const void* from, void* to, uint32_t key, uint32_t first, int64_t size);

// Between a block of at most kTerms numbers, and their codes with the scale of the block.
typedef void (*DtoptUnpack)(const DtoptBook* book, const void* codes, const float* scale, float* to, int64_t size);
typedef void (*DtoptPack)(const DtoptBook* book, const float* from, void* codes, float* scale, int64_t size);

// sum (wide) += values (T), or their squares, or their absolute values.
typedef void (*DtoptAdd)(const void* values, void* sum, int64_t size);

// How an array of a step on plain buffers is stored.
struct DtoptStored {
  int64_t storage, element;  // and the bytes of an element
  const DtoptBook* book;     // of codes
  float* scales;             // of codes, one for each kTerms elements
  int64_t key;               // of the noise
};

// What one step does with one variable on plain buffers: `update` is applied to all elements. stored: null, or one of each
// slot and then of the variable, which `update` is given in float32. wide: bytes of an element of the gradient.
struct DtoptItem {
  DtoptUpdate update;
  char* variable;
  const char* gradient;
  char* const* slots;
  const double* scalars;
  const DtoptStored* stored;
  double decay;
  int64_t size, slot_count, element, wide;
};

// Steps items laid end to end, in blocks that threads take by raising `next` until all are done.
typedef void (*DtoptSteps)(const DtoptItem* items, int64_t count, int64_t* next);

}  // extern "C"

#endif  // DTOPT_ABI_H_
