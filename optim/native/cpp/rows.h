// Of IndexedSlices: each row once, ascending, and the sum of what it is given.

#ifndef DTOPT_ROWS_H_
#define DTOPT_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "sorted.h"
#include "step.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "threads.h"

namespace dtopt {

// The rows of a gradient that are in `range`, counted from its start, and their sums, in order and in float32 at least.
inline absl::Status SumRows(OpKernelContext* context, const AllBasics& all, const Tensor& values, const Tensor& indices,
                            const Range& range, Tensor* sums, Tensor* rows) {
  const int64_t given = indices.NumElements();
  const Basics& basics = *all[values.dtype()];
  Order order;
  bool ascending;
  TF_RETURN_IF_ERROR(OrderOf(values, indices, range, &order, &ascending));
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
