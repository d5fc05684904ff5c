// Of IndexedSlices: each row once, ascending, and the sum of what it is given.

#ifndef DTOPT_ROWS_H_
#define DTOPT_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "step.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "threads.h"

namespace dtopt {

// Rows `start`, ..., `start + count - 1` of a table that has `total` of them.
struct Range {
  int64_t start, count, total;
};

using Order = std::vector<std::pair<int64_t, int64_t>>;  // row, and position in what was given

template <typename Index>
absl::Status RowsIn(const Index* indices, int64_t count, const Range& range, Order* order, bool* ascending) {
  order->reserve(count);
  *ascending = true;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t row = indices[k];
    if (row < 0 || row >= range.total) {
      return InvalidArgument("the gradient is for row ", row, ", the variable has ", range.total, " rows");
    }
    if (row < range.start || row >= range.start + range.count) continue;
    *ascending = *ascending && (order->empty() || order->back().first < row - range.start);
    order->push_back({row - range.start, k});
  }
  return absl::OkStatus();
}

inline absl::Status RowsIn(const Tensor& indices, const Range& range, Order* order, bool* ascending) {
  const int64_t count = indices.NumElements();
  if (indices.dtype() == tensorflow::DT_INT32) {
    return RowsIn(indices.vec<int32_t>().data(), count, range, order, ascending);
  }
  return RowsIn(indices.vec<int64_t>().data(), count, range, order, ascending);
}

// In the order of rows, and of what was given for each: a digit at a time, from the last, which for thousands of rows
// is several times as fast as to compare them.
inline void Sort(int64_t rows, Order* order) {
  constexpr int kBits = 11;
  constexpr size_t kDigits = size_t{1} << kBits;
  if (order->size() < kDigits / 4) return std::sort(order->begin(), order->end());
  Order other(order->size());
  for (int shift = 0; shift < 63 && (rows - 1) >> shift > 0; shift += kBits) {
    size_t starts[kDigits + 1] = {};
    for (const auto& entry : *order) ++starts[(entry.first >> shift) % kDigits + 1];
    for (size_t digit = 0; digit < kDigits; ++digit) starts[digit + 1] += starts[digit];
    for (const auto& entry : *order) other[starts[(entry.first >> shift) % kDigits]++] = entry;
    order->swap(other);
  }
}

// The rows of a gradient that are in `range`, counted from its start, and their sums, in order and in float32 at least.
inline absl::Status SumRows(OpKernelContext* context, const AllBasics& all, const Tensor& values, const Tensor& indices,
                            const Range& range, Tensor* sums, Tensor* rows) {
  const int64_t given = indices.NumElements();
  if (values.dims() < 1 || indices.dims() != 1 || values.dim_size(0) != given) {
    return InvalidArgument("values of shape ", values.shape().DebugString(), " for indices of shape ",
                           indices.shape().DebugString());
  }
  const Basics& basics = *all[values.dtype()];
  Order order;
  bool ascending;
  TF_RETURN_IF_ERROR(RowsIn(indices, range, &order, &ascending));
  if (!ascending) Sort(range.count, &order);
  const int64_t count = order.size();
  std::vector<int64_t> starts;
  starts.reserve(count);
  for (int64_t k = 0; k < count; ++k) {
    if (k == 0 || order[k - 1].first != order[k].first) starts.push_back(k);
  }
  const int64_t found = starts.size();
  TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_INT64, {found}, rows));
  int64_t* each = rows->vec<int64_t>().data();
  for (int64_t k = 0; k < found; ++k) each[k] = order[starts[k]].first;
  if (ascending && count == given && basics.element == basics.wide) {
    *sums = values;
    return absl::OkStatus();
  }
  tensorflow::TensorShape shape = values.shape();
  shape.set_dim(0, found);
  const DataType wide = basics.wide == 8 ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT;
  TF_RETURN_IF_ERROR(context->allocate_temp(wide, shape, sums));
  const int64_t columns = given == 0 ? 0 : values.NumElements() / given;
  const char* from = static_cast<const char*>(values.data());
  char* to = static_cast<char*>(sums->data());
  const int64_t at_once = std::max<int64_t>(1, kBlock / std::max<int64_t>(columns, 1));
  ForEachBlock(WorkersOf(context), (found + at_once - 1) / at_once, [&](int64_t block) {
    for (int64_t k = block * at_once; k < std::min(found, (block + 1) * at_once); ++k) {
      char* row = to + k * columns * basics.wide;
      const int64_t end = k + 1 < found ? starts[k + 1] : count;
      for (int64_t at = starts[k]; at < end; ++at) {
        const char* value = from + order[at].second * columns * basics.element;
        at == starts[k] ? basics.widen(value, row, columns) : basics.add(value, row, columns);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace dtopt

#endif  // DTOPT_ROWS_H_
