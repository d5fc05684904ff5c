// The argument of the kernels that add up `IndexedSlices`, for the host and for a GPU.

#ifndef DTOPT_TABLE_H_
#define DTOPT_TABLE_H_

constexpr int kRowThreads = 256;  // of a block; a warp has a row

struct Table {
  int64_t given, columns;  // how many gradients of rows there are, and how large each is
  int64_t rows;            // of the whole table
  const void* values;      // the gradients, as they are given
  const int64_t* named;    // their rows, in ascending order
  const int64_t* order;    // and where in `values` each of them is
  // Of each of these the sum of all that is given for its row, or zeros if that is the one before it; or, if `dense`, that
  // of each row of the whole table that is named.
  void* sums;
  void* powers;            // the sums of `power_count` powers of each, one after the other, each like `sums`
  int64_t* table;          // null if `dense`; of each sum its row, or -1
  double* outside;         // in memory of the host: a row that the table does not have, one more if it is not negative; or 0
  int is_dense, power_count;
  int are_absolute[2];     // of each power whether it is the absolute value, and not the square
};

#endif  // DTOPT_TABLE_H_
