// The kernels that add up what `IndexedSlices` have for each row, in the order in which it is given and in float32 at least,
// as the CPU does.

#ifndef DTOPT_TABLE_GPU_H_
#define DTOPT_TABLE_GPU_H_

#include "gpu.h"
#include "squares.h"
#include "table.h"

namespace {

// Of gradient k, as sorted, the element of a column.
template <typename T>
DTOPT_FN Wide<T> ValueOf(const Table& all, int64_t k, int64_t column) {
  return Load(static_cast<const T*>(all.values)[all.order[k] * all.columns + column]);
}

template <typename T>
DTOPT_FN void AddUpRows(const Table& all) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x, at = thread / kLanes;
  const int lane = thread % kLanes;
  if (at >= all.given) return;
  const int64_t row = all.named[at];
  const bool is_first = at == 0 || all.named[at - 1] != row, is_inside = row >= 0 && row < all.rows;
  if (lane == 0 && !is_inside) *all.outside = static_cast<double>(row < 0 ? row : row + 1);
  if (lane == 0 && !all.is_dense) all.table[at] = is_first && is_inside ? row : -1;
  if (all.is_dense && !(is_first && is_inside)) return;
  int64_t end = is_first && is_inside ? at + 1 : at;
  while (end > at && end < all.given && all.named[end] == row) ++end;
  const int64_t first = (all.is_dense ? row : at) * all.columns;
  for (int64_t i = lane; i < all.columns; i += kLanes) {
    Wide<T> sum = 0;
    for (int64_t k = at; k < end; ++k) {
      const Wide<T> value = ValueOf<T>(all, k, i);
      sum = k == at ? value : sum + value;
    }
    static_cast<Wide<T>*>(all.sums)[first + i] = sum;
    for (int of = 0; of < all.power_count; ++of) {
      Wide<T> power = 0;
      for (int64_t k = at; k < end; ++k) {
        const Wide<T> value = ValueOf<T>(all, k, i);
        power = power + (all.are_absolute[of] ? std::abs(value) : Square(value));
      }
      const int64_t before = of * (all.is_dense ? all.rows : all.given) * all.columns;
      static_cast<Wide<T>*>(all.powers)[before + first + i] = power;
    }
  }
}

}  // namespace

#define DTOPT_TABLE(kernel, T)                                                                                   \
  extern "C" __global__ void __launch_bounds__(kRowThreads) kernel(DTOPT_ARGUMENT Table all) { AddUpRows<T>(all); } \
  DTOPT_EMULATED(kernel, kRowThreads, Table)

DTOPT_TABLE(dtopt_table_float32, float)
DTOPT_TABLE(dtopt_table_float64, double)
DTOPT_TABLE(dtopt_table_bfloat16, BFloat16)
DTOPT_TABLE(dtopt_table_float16, Half)

#endif  // DTOPT_TABLE_GPU_H_
