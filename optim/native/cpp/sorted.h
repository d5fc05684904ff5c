// Of IndexedSlices: each row once, ascending, and where the sum of what it is given lies. A row that is given once is not
// copied: to write what is read anyway takes as long as to update it.

#ifndef DTOPT_SORTED_H_
#define DTOPT_SORTED_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "groups.h"
#include "pieces.h"
#include "tensorflow/core/framework/tensor.h"

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

inline absl::Status OrderOf(const Tensor& values, const Tensor& indices, const Range& range, Order* order,
                            bool* ascending) {
  if (values.dims() < 1 || indices.dims() != 1 || values.dim_size(0) != indices.NumElements()) {
    return InvalidArgument("values of shape ", values.shape().DebugString(), " for indices of shape ",
                           indices.shape().DebugString());
  }
  TF_RETURN_IF_ERROR(RowsIn(indices, range, order, ascending));
  if (!*ascending) Sort(range.count, order);
  return absl::OkStatus();
}

struct SortedRows {
  std::vector<int64_t> rows;     // counted from the start of the range
  std::vector<const char*> at;   // by row: the sum of what it is given, all columns
  int64_t columns = 0;
  Tensor sums;                   // of rows that are given several times, in order
  Tensor powers;                 // by row: the sums of so many powers of each, all columns, one after the other
  size_t power_count = 0;

  // values: in float32 or float64, and not to be freed before this. wanted: which powers, as `Basics` has them.
  absl::Status Make(const Basics& basics, const Tensor& values, const Tensor& indices, const Range& range,
                    const std::vector<int64_t>& wanted) {
    Order order;
    bool ascending;
    TF_RETURN_IF_ERROR(OrderOf(values, indices, range, &order, &ascending));
    const int64_t given = indices.NumElements();
    columns = given == 0 ? 0 : values.NumElements() / given;
    size_ = columns * basics.element;
    from_ = static_cast<const char*>(values.data());
    TF_RETURN_IF_ERROR(MakeRoom(order, values.dtype()));
    rows.reserve(order.size());
    at.reserve(order.size());
    char* next = static_cast<char*>(sums.data());
    for (size_t k = 0; k < order.size();) {
      const size_t end = EndOf(order, k);
      rows.push_back(order[k].first);
      at.push_back(end == k + 1 ? Given(order[k]) : next);
      if (end > k + 1) {
        std::memcpy(next, Given(order[k]), size_);
        for (size_t again = k + 1; again < end; ++again) basics.add(Given(order[again]), next, columns);
        next += size_;
      }
      k = end;
    }
    return AddPowers(basics, order, values.dtype(), wanted);
  }

 private:
  absl::Status AddPowers(const Basics& basics, const Order& order, tensorflow::DataType dtype,
                         const std::vector<int64_t>& wanted) {
    power_count = wanted.size();
    if (wanted.empty()) return absl::OkStatus();
    powers = Tensor(dtype, tensorflow::TensorShape({static_cast<int64_t>(rows.size()), power_count * columns}));
    if (!powers.IsInitialized()) {
      return powers.NumElements() == 0 ? absl::OkStatus() : absl::ResourceExhaustedError("no memory for sums");
    }
    char* next = static_cast<char*>(powers.data());
    std::memset(next, 0, powers.TotalBytes());
    for (size_t k = 0; k < order.size(); next += wanted.size() * size_) {
      const size_t end = EndOf(order, k);
      for (; k < end; ++k) {
        for (size_t of = 0; of < wanted.size(); ++of) basics.powers[wanted[of]](Given(order[k]), next + of * size_, columns);
      }
    }
    return absl::OkStatus();
  }

  static size_t EndOf(const Order& order, size_t k) {
    size_t end = k + 1;
    while (end < order.size() && order[end].first == order[k].first) ++end;
    return end;
  }

  const char* Given(const Order::value_type& entry) const { return from_ + entry.second * size_; }

  absl::Status MakeRoom(const Order& order, tensorflow::DataType dtype) {
    int64_t repeated = 0;
    for (size_t k = 0, end; k < order.size(); k = end) repeated += (end = EndOf(order, k)) > k + 1;
    if (repeated == 0) return absl::OkStatus();
    sums = Tensor(dtype, tensorflow::TensorShape({repeated, columns}));
    return sums.IsInitialized() || columns == 0 ? absl::OkStatus() : absl::ResourceExhaustedError("no memory for sums");
  }

  const char* from_ = nullptr;
  int64_t size_ = 0;  // of a row, in bytes
};

}  // namespace dtopt

#endif  // DTOPT_SORTED_H_
