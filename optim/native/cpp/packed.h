// How arrays in few bits are stored, for the host and for a GPU: see optim/bits.

#ifndef DTOPT_PACKED_H_
#define DTOPT_PACKED_H_

// As a step computes, in 8-bit codes, or in another type.
enum DtoptStorage : int64_t { kAsComputed, kCodes, kBFloat16, kRandomBFloat16, kHalf };

constexpr int64_t kCodedAtOnce = 2048;  // elements that share a scale

// A code book of 8 bits: the numbers that codes represent, by their bytes; and what turns a number into its code, by the
// upper half of its bits. At most one border between codes is in each of these steps. The code is the upper half of the sum
// of a step's number and of the lower half of the bits: see `steps` of optim/bits/codes.py.
constexpr int32_t kFirstStep = 0x3400, kSteps = 0x3f80 - kFirstStep + 1;  // from 2^-23, below which all are zero, to 1
struct DtoptBook {
  float values[256];
  uint32_t steps[2 * kSteps];  // of numbers without a sign, then of negative ones, which give 255 less the code
  uint8_t flip;                // turns a code into a byte
};

#endif  // DTOPT_PACKED_H_
