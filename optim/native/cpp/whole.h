// What a rule adds up over a whole variable, its matrices, its rows or its columns, before it updates it; and slots that have fewer dims.

#ifndef DTOPT_WHOLE_H_
#define DTOPT_WHOLE_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "abi.h"
#include "pieces.h"
#include "sums.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "threads.h"

namespace dtopt {

// The number that a slot is.
inline double Number(const Basics& basics, const void* stored) {
  alignas(double) char wide[sizeof(double)];
  basics.widen(stored, wide, 1);
  return basics.wide == sizeof(double) ? *reinterpret_cast<double*>(wide) : *reinterpret_cast<float*>(wide);
}

static_assert(kRunSize == kTerms, "functions add up so many elements at a time");

// A function that makes sums, and what it makes.
struct Adding : PassCounts {
  DtoptSums function = nullptr;
};

// What of a rule is done besides the update.
struct Parts {
  std::vector<Adding> adding;                // in an order in which each sum is known before it is needed
  DtoptStores stores[kShapes] = {};          // of slots of each shape but kFull
  bool by_rows = false;                      // whether rows and columns matter

  bool any() const { return !adding.empty() || stores[kOne] != nullptr || by_rows; }
};

// How a variable of that shape is divided.
inline Grid GridOf(bool by_rows, int64_t size, const tensorflow::TensorShape& shape) {
  if (!by_rows) return Grid::OfElements(size);
  int64_t matrices = 1;
  for (int dim = 0; dim < shape.dims() - 2; ++dim) matrices *= shape.dim_size(dim);
  return Grid::Of(size, matrices, shape.dim_size(shape.dims() - 2), shape.dim_size(shape.dims() - 1));
}

// One variable's. Its functions are given as scalars: those of the step, the slots that are one number, the number of
// elements, of matrices, of rows and of columns, and the sums of all; then the sums of the matrix; with elements, which are
// of one row, what they need of that row. As slots: those that have one number of each that is visited; with rows and
// columns their sums, with elements what they need of columns; and where to put what is made of each. All but slots is
// float64.
class Whole {
 public:
  Whole(const Parts& parts, const Step& step, const std::vector<double>& scalars, const tensorflow::TensorShape& shape,
        Piece* piece)
      : parts_(parts), step_(step), piece_(piece), grid_(GridOf(parts.by_rows, piece->size, shape)), ones_(scalars) {
    for (const char* single : piece->singles) ones_.push_back(Number(*step.basics, single));
    for (const int64_t count : {piece->size, grid_.matrices, grid_.rows, grid_.columns}) ones_.push_back(count);
    known_ = ones_.size();
    int64_t ones = 0;
    for (const Adding& each : parts.adding) {
      const bool sums = each.is_full();
      ones += each.ones;
      for (int64_t k = 0; k < each.matrices; ++k) piece->of_matrices.emplace_back(grid_.matrices);
      for (int64_t k = 0; k < each.rows; ++k) (sums ? row_sums_ : piece->of_rows).emplace_back(grid_.all_rows());
      for (int64_t k = 0; k < each.columns; ++k) {
        (sums ? column_sums_ : piece->of_columns).emplace_back(grid_.all_columns());
      }
    }
    ones_.resize(known_ + ones);
    piece->scalars = ones_.data();
    piece->scalar_count = ones_.size();
    piece->width = parts.by_rows ? grid_.columns : 0;
    piece->height = std::max<int64_t>(grid_.rows, 1);
  }

  // How many parts of the work there are, the same for any number of threads. They are of whole rows.
  int64_t bands(const Adding& adding) const { return grid_.Over(adding.over).bands; }

  // Adds up a part; `found` is what its sums of all come to, of the matrices that it has rows of, and of their columns.
  void Add(const Adding& adding, int64_t band, std::vector<double>* found) {
    const Band part(*this, adding, band);
    found->assign(adding.ones + part.count * (adding.matrices + adding.column_sums() * grid_.columns), 0);
    std::vector<double> sums(adding.ones + adding.matrices + adding.rows);
    double* of_matrix = found->data() + adding.ones;
    const auto take = [&](int64_t matrix) {
      for (int64_t k = 0; k < adding.matrices; ++k) {
        of_matrix[(matrix - part.first) * adding.matrices + k] += std::exchange(sums[adding.ones + k], 0);
      }
    };
    if (!adding.is_full()) {
      for (int64_t matrix = 0; matrix < grid_.matrices; ++matrix, take(matrix - 1)) AddSmall(adding, matrix, sums.data());
    } else {
      Pass pass(step_, *piece_);
      double* of_columns = of_matrix + part.count * adding.matrices;
      for (int64_t k = 0; k < adding.columns; ++k) pass.Append(of_columns + k * part.count * grid_.columns, part.first);
      for (int64_t row = part.begin; row < part.end; ++row) {
        const int64_t end = std::min((row + 1) * grid_.columns, piece_->size);
        pass.Sums(adding.function, row * grid_.columns, end, sums.data());
        for (int64_t k = 0; k < adding.rows; ++k) {
          row_sums_[rows_known_ + k][row] = std::exchange(sums[adding.ones + adding.matrices + k], 0);
        }
        if (adding.matrices > 0) take(row / grid_.rows);
      }
    }
    std::copy_n(sums.begin(), adding.ones, found->begin());
  }

  // Of all parts, in order.
  void Join(const Adding& adding, const std::vector<double>* parts) {
    for (int64_t band = 0; band < bands(adding); ++band) {
      const Band part(*this, adding, band);
      const double* found = parts[band].data();
      for (int64_t k = 0; k < adding.ones; ++k) ones_[known_ + k] += *found++;
      for (int64_t matrix = part.first; matrix < part.first + part.count; ++matrix) {
        for (int64_t k = 0; k < adding.matrices; ++k) piece_->of_matrices[matrices_known_ + k][matrix] += *found++;
      }
      for (int64_t k = 0; k < adding.column_sums(); ++k) {
        double* sums = column_sums_[columns_known_ + k].data() + part.first * grid_.columns;
        for (int64_t i = 0; i < part.count * grid_.columns; ++i) sums[i] += *found++;
      }
    }
    known_ += adding.ones;
    matrices_known_ += adding.matrices;
    (adding.is_full() ? rows_known_ : of_rows_known_) += adding.rows;
    (adding.is_full() ? columns_known_ : of_columns_known_) += adding.columns;
  }

  // After the update, which needs them as they were.
  void Store() {
    for (const int64_t shape : {kRows, kColumns, kOne}) {
      if (parts_.stores[shape] == nullptr) continue;
      for (int64_t matrix = 0; matrix < (shape == kOne ? 1 : grid_.matrices); ++matrix) {
        FindStreams(shape, matrix * Count(shape));
        parts_.stores[shape](streams_.data(), ScalarsOf(matrix), Count(shape));
      }
    }
  }

 private:
  // Rows of all matrices, one after the other, and the matrices that they are of.
  struct Band {
    int64_t begin = 0, end = 0, first = 0, count = 0;

    Band(const Whole& whole, const Adding& adding, int64_t band) {
      const Grid& grid = whole.grid_;
      if (!adding.is_full()) count = grid.matrices;
      if (!adding.is_full() || grid.all_rows() == 0) return;
      begin = grid.begin(band);
      end = grid.begin(band + 1);
      first = begin / grid.rows;
      count = (end - 1) / grid.rows + 1 - first;
    }
  };

  int64_t Count(int64_t shape) const { return shape == kRows ? grid_.rows : shape == kColumns ? grid_.columns : 1; }

  // Slots and sums of a shape, from element `at` on.
  void FindStreams(int64_t shape, int64_t at) {
    streams_.clear();
    const auto& slots = shape == kRows ? piece_->row_slots : shape == kColumns ? piece_->column_slots : piece_->singles;
    for (char* slot : slots) streams_.push_back(slot + at * step_.basics->element);
    if (shape == kOne) return;
    for (auto& sums : shape == kRows ? row_sums_ : column_sums_) streams_.push_back(sums.data() + at);
  }

  const double* ScalarsOf(int64_t matrix) {
    scalars_.assign(ones_.begin(), ones_.end());
    for (const auto& sums : piece_->of_matrices) scalars_.push_back(matrix < grid_.matrices ? sums[matrix] : 0);
    return scalars_.data();
  }

  // Of rows or columns of a matrix.
  void AddSmall(const Adding& adding, int64_t matrix, double* sums) {
    const bool rows = adding.over == kRows;
    auto made = rows ? piece_->of_rows.begin() + of_rows_known_ : piece_->of_columns.begin() + of_columns_known_;
    const int64_t count = Count(adding.over), last = rows ? adding.rows : adding.columns;
    const double* scalars = ScalarsOf(matrix);
    for (int64_t at = 0; at < count; at += kTerms) {
      FindStreams(adding.over, matrix * count + at);
      for (int64_t k = 0; k < last; ++k) streams_.push_back(made[k].data() + matrix * count + at);
      adding.function(nullptr, nullptr, streams_.data(), scalars, 1, 1, 1, std::min(kTerms, count - at), sums);
    }
  }

  const Parts& parts_;
  const Step& step_;
  Piece* piece_;
  const Grid grid_;
  std::vector<double> ones_, scalars_;
  std::vector<void*> streams_;
  std::vector<std::vector<double>> row_sums_, column_sums_;
  int64_t known_, matrices_known_ = 0;
  int64_t rows_known_ = 0, columns_known_ = 0, of_rows_known_ = 0, of_columns_known_ = 0;
};

// The sums of all variables, one function after the other.
inline void AddUp(const Workers& workers, const Parts& parts, std::vector<Whole>* wholes) {
  for (const Adding& adding : parts.adding) {
    std::vector<std::pair<size_t, int64_t>> bands;  // a variable, and a part of it
    std::vector<size_t> starts;
    for (size_t i = 0; i < wholes->size(); ++i) {
      starts.push_back(bands.size());
      for (int64_t band = 0; band < (*wholes)[i].bands(adding); ++band) bands.push_back({i, band});
    }
    std::vector<std::vector<double>> found(bands.size());
    ForEachBlock(workers, bands.size(), [&](int64_t k) {
      (*wholes)[bands[k].first].Add(adding, bands[k].second, &found[k]);
    });
    for (size_t i = 0; i < wholes->size(); ++i) (*wholes)[i].Join(adding, found.data() + starts[i]);
  }
}

}  // namespace dtopt

#endif  // DTOPT_WHOLE_H_
