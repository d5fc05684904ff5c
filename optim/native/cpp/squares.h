// The argument of the kernels that add up squares, for the host and for a GPU.

#ifndef DTOPT_SQUARES_H_
#define DTOPT_SQUARES_H_

constexpr int kSquaredAtOnce = 4096;  // elements whose squares one warp adds up
constexpr int kMostSquared = 1600;    // tensors of one launch

struct Squares {
  int count, unused;
  int first[kMostSquared + 1];        // the first run of kSquaredAtOnce elements of each tensor, and the number of all
  int64_t size[kMostSquared];
  const void* values[kMostSquared];
  double* runs;                       // of each run its sum
  double* sums;                       // of each tensor
};

static_assert(sizeof(Squares) <= 32764, "it is the argument of a kernel");

#endif  // DTOPT_SQUARES_H_
