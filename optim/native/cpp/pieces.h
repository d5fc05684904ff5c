// One shard's update, over any range of its elements, in one pass over memory: the functions of abi.h around one rule.

#ifndef DTOPT_PIECES_H_
#define DTOPT_PIECES_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "abi.h"
#include "absl/container/inlined_vector.h"
#include "box.h"

namespace dtopt {

constexpr int64_t kChunk = kTerms;  // elements between the loops of a pass; they stay in the first cache
constexpr int64_t kRowsAhead = 4;   // single rows are asked for so many before they are updated,
constexpr int64_t kAskedFor = 1024, kCacheLine = 64;  // so many bytes of each, in lines

// Codes of 8 bits: see abi.h.
struct Coding {
  DtoptUnpack unpack = nullptr;
  DtoptPack pack = nullptr;
};

// The functions for one storage type.
struct Basics {
  int64_t element = 0, wide = 0;  // bytes
  DtoptAverage average = nullptr;
  DtoptSquares squares = nullptr;
  DtoptConvert widen = nullptr, narrow = nullptr;
  DtoptAdd add = nullptr;
  DtoptAdd powers[2] = {};  // adds squares, absolute values
  DtoptRound round = nullptr;  // of bfloat16 alone
};

// A box as rows: a range of columns of a range of rows of the shard, whose rows have `stride` elements.
struct RowBox {
  int64_t first_row = 0, rows = 0, first_column = 0, columns = 0, stride = 0;

  // Of a shard with so many rows of `width` elements each; false if the box (null: the whole shard) is none.
  static bool Of(int64_t rows, int64_t width, const Box* box, RowBox* found) {
    if (box == nullptr) return Set(found, 0, rows, 0, width, width);
    if (width == 0) return false;
    const int64_t row = box->first / width, column = box->first % width;
    if (box->levels.empty() && column == 0 && box->run % width == 0) {
      return Set(found, row, box->run / width, 0, width, width);
    }
    if (column + box->run > width) return false;
    if (box->levels.empty()) return Set(found, row, 1, column, box->run, width);
    if (box->levels.size() != 1 || box->levels[0].second != width) return false;
    return Set(found, row, box->levels[0].first, column, box->run, width);
  }

 private:
  static bool Set(RowBox* found, int64_t row, int64_t rows, int64_t column, int64_t columns, int64_t stride) {
    *found = {row, rows, column, columns, stride};
    return true;
  }
};

// What happens to rows without a gradient: left out of IndexedSlices, or all of a dense one zeros.
enum class Others { kMove, kStay, kMoveSlots };

// How an array is stored that a step does not compute with as it is: as codes if there is a book, else in another type, to
// which it is rounded at random or to nearest.
struct Packing {
  const Basics* basics = nullptr;  // null: of codes, or stored as computed
  const DtoptBook* book = nullptr;
  float* scales = nullptr;
  bool is_random = false;
  uint32_t key = 0;
  int64_t element = 0;             // bytes

  bool IsStoredWide() const { return book == nullptr && basics == nullptr; }
  DtoptStorage storage() const {
    if (book != nullptr) return kCodes;
    if (basics == nullptr) return kAsComputed;
    const bool is_half = basics->round == nullptr;
    return is_half ? kHalf : is_random ? kRandomBFloat16 : kBFloat16;
  }
};

// What one step does with all shards.
struct Step {
  DtoptUpdate update;          // where a piece is packed, of wide numbers
  const Basics* basics;        // of variables, slots and averages
  double limit;                // that gradients are clipped to
  double average_weight, value_weight;
  bool overwrite;              // variables by their averages
  Coding coding;
};

struct Piece {  // pointers to the first element of the shard; `size` counts what is visited
  char* variable = nullptr;
  absl::InlinedVector<char*, 4> slots;  // shaped like the variable
  std::vector<Packing> packings;        // of each of these, then of the variable; empty: all as the step computes
  // Slots of each row, of each column, and of one number each; what elements need of their row and column, see whole.h.
  std::vector<char*> row_slots, column_slots, singles;
  std::vector<std::vector<double>> of_matrices, of_rows, of_columns;
  const double* scalars = nullptr;      // of the rule
  int64_t scalar_count = 0, width = 0;  // how many; the columns of the variable, where these matter,
  int64_t height = 1;                   // and then the rows of each matrix
  char* average = nullptr;
  char* rounding = nullptr;             // of `variable`, in another storage type
  const Basics* rounded = nullptr;      // that type
  bool is_part = false;                 // whether `variable` lies as the slots do, and only `rounding` is a whole shard
  std::vector<char*> replicas;          // of the shard, on other devices, which are given the new values, too
  const char* gradient = nullptr;
  const Basics* given = nullptr;        // the storage type of the gradient
  double scale = 1, decay = 1;
  int64_t size = 0;
  const Box* box = nullptr;             // null: the whole shard
  Others others = Others::kMove;
  RowBox part;                          // what is updated, used with `rows`, or if not all others move
  // The gradient's rows, ascending, where it has some rows only: of the whole table, of which `part` begins at first_row
  // and first_column. Row k is at gradient + k * stride, or where `at` says.
  const int64_t* rows = nullptr;
  const char* const* at = nullptr;
  int64_t count = 0, stride = 0, first_row = 0, first_column = 0;
  bool zeros_count = false;             // whether rows that are listed have a gradient, if only of zeros
  // Where the rule needs sums of powers: so many, and for each row of the gradient these one after the other, wide.
  int64_t power_count = 0;
  const char* powers = nullptr;
  bool listed = false;                  // `size` counts the elements of `rows`, and nothing else is visited
};

class Pass {
 public:
  Pass(const Step& step, const Piece& piece)
      : step_(step), piece_(piece), at_(piece.slots.size() + piece.power_count) {
    scalars_ = piece.scalars;
    if (piece.width > 0) {
      of_row_.assign(piece.scalars, piece.scalars + piece.scalar_count);
      of_row_.resize(of_row_.size() + piece.of_matrices.size() + piece.of_rows.size());
      at_.resize(at_.size() + piece.of_columns.size());
      scalars_ = of_row_.data();
    }
    buffers_.resize(piece.packings.size() * kChunk);
    simple_ = !NeedsWidening() && piece.average == nullptr && piece.rounding == nullptr && piece.replicas.empty() &&
              piece.packings.empty();
  }

  void Run(int64_t begin, int64_t end) {
    if (piece_.listed) return RunListed(begin, end);
    if (piece_.rows != nullptr || piece_.others != Others::kMove) return RunRows(begin, end);
    if (piece_.box == nullptr) return Dense(begin, begin, end - begin);
    const int64_t run = piece_.box->run;
    while (begin < end) {
      const int64_t number = begin / run, stop = std::min(end, (number + 1) * run);
      Dense(begin, piece_.box->Offset(number) + begin - number * run, stop - begin);
      begin = stop;
    }
  }

  // An array of one number for each column of matrix `first` and those after it, behind the slots.
  void Append(double* sums, int64_t first) {
    appended_.push_back(sums);
    at_.push_back(sums);
    first_ = first;
  }

  // Adds what the rule adds up over a run of elements, of one row where rows matter, of a piece that is a whole shard with
  // a dense gradient.
  void Sums(DtoptSums of, int64_t begin, int64_t end, double* sums) {
    alignas(64) char wide[kChunk * sizeof(double)];
    for (; begin < end; begin += kChunk) {
      const int64_t size = std::min(kChunk, end - begin);
      const char* gradient = Widened(piece_.gradient + begin * piece_.given->element, wide, size);
      Locate(begin);
      of(piece_.variable + begin * step_.basics->element, gradient, at_.data(), scalars_, piece_.scale,
         step_.limit, piece_.decay, size, sums);
    }
  }

 private:
  bool NeedsWidening() const { return piece_.given != nullptr && piece_.given->element != piece_.given->wide; }

  void Dense(int64_t at, int64_t offset, int64_t size) {
    Update(at, offset, piece_.gradient + offset * piece_.given->element, size, true);
  }

  // Where row k of the gradient begins, all columns of the table.
  const char* Row(int64_t k) const {
    return piece_.at != nullptr ? piece_.at[k] : piece_.gradient + k * piece_.stride * piece_.given->element;
  }

  // Where an element of `part` lies in the variable.
  int64_t Offset(int64_t row, int64_t column) const {
    const RowBox& part = piece_.part;
    return (part.first_row + row) * part.stride + part.first_column + column;
  }

  // With row k of the gradient.
  void UpdateRow(int64_t row, int64_t column, int64_t k, int64_t size) {
    const int64_t at = row * piece_.part.columns + column, in_row = piece_.first_column + column;
    if (piece_.power_count > 0) powers_ = {Powers(k) + in_row * step_.basics->wide, at};
    Update(at, Offset(row, column), Row(k) + in_row * piece_.given->element, size, true);
    powers_ = {};
  }

  const char* Powers(int64_t k) const {
    return piece_.powers + k * piece_.power_count * piece_.stride * step_.basics->wide;
  }

  void RunListed(int64_t begin, int64_t end) {
    const int64_t columns = piece_.part.columns;
    while (begin < end) {
      const int64_t k = begin / columns, column = begin % columns;
      const int64_t size = std::min(end - begin, columns - column);
      if (k + kRowsAhead < piece_.count) AskForRow(k + kRowsAhead);
      if (HasGradient(k)) {
        UpdateRow(piece_.rows[k] - piece_.first_row, column, k, size);
      }
      begin += size;
    }
  }

  // Where the next rows lie no processor can foresee; of a long one it is enough to ask for the start.
  void AskForRow(int64_t k) const {
    const int64_t row = piece_.rows[k] - piece_.first_row;
    if (piece_.at != nullptr) AskFor(piece_.at[k], std::min(piece_.stride * piece_.given->element, kAskedFor));
    const int64_t bytes = std::min(piece_.part.columns * step_.basics->element, kAskedFor);
    AskFor(Variable(row * piece_.part.columns, Offset(row, 0)), bytes);
    for (size_t k = 0; k < piece_.slots.size(); ++k) AskFor(SlotAt(k, row * piece_.part.columns), bytes);
  }

  static void AskFor(const char* data, int64_t bytes) {
    for (int64_t byte = 0; byte < bytes; byte += kCacheLine) __builtin_prefetch(data + byte, 1);
  }

  // Every row of `part`, with its gradient or without.
  void RunRows(int64_t begin, int64_t end) {
    const int64_t columns = piece_.part.columns;
    const bool is_gapless = columns == piece_.part.stride;
    int64_t row = begin / columns, column = begin % columns;
    int64_t k = 0;
    if (piece_.rows != nullptr) {
      k = std::lower_bound(piece_.rows, piece_.rows + piece_.count, row + piece_.first_row) - piece_.rows;
    }
    while (begin < end) {
      int64_t rows = 1, given = kNone;
      if (piece_.rows == nullptr) {
        given = row;
      } else if (k < piece_.count && piece_.rows[k] == row + piece_.first_row) {
        given = k++;
      } else if (is_gapless) {  // up to the next row that has one
        rows = (k < piece_.count ? piece_.rows[k] - piece_.first_row : (end + columns - 1) / columns) - row;
      }
      const int64_t size = std::min(end - begin, rows * columns - column);
      if (given == kNone || !HasGradient(given)) {
        Untouched(begin, Offset(row, column), size);
      } else {
        UpdateRow(row, column, given, size);
      }
      begin += size;
      row += rows;
      column = 0;
    }
  }

  bool HasGradient(int64_t k) const {
    return piece_.others == Others::kMove || piece_.zeros_count || !IsZero(Row(k));
  }

  bool IsZero(const char* row) const {  // of the elements' bits, all but the sign
    const int64_t bytes = piece_.stride * piece_.given->element;
    switch (piece_.given->element) {
      case 2: return AllZero<uint16_t>(row, bytes / 2);
      case 4: return AllZero<uint32_t>(row, bytes / 4);
      default: return AllZero<uint64_t>(row, bytes / 8);
    }
  }

  template <typename Bits>
  static bool AllZero(const char* row, int64_t size) {
    const Bits* bits = reinterpret_cast<const Bits*>(row);
    Bits any = 0;
    for (int64_t i = 0; i < size; ++i) any |= static_cast<Bits>(bits[i] << 1);
    return any == 0;
  }

  void Untouched(int64_t at, int64_t offset, int64_t size) {
    if (piece_.others == Others::kStay) {
      if (piece_.average != nullptr) Update(at, offset, nullptr, size, false);
      return;
    }
    for (int64_t done = 0; done < size; done += kChunk) {
      const int64_t now = std::min(kChunk, size - done);
      if (piece_.others == Others::kMoveSlots) MoveSlots(at + done, offset + done, kZeros, now);
      Update(at + done, offset + done, kZeros, now, piece_.others == Others::kMove, true);
    }
  }

  // The slots move as by a gradient of zero; the variable stays.
  void MoveSlots(int64_t at, int64_t offset, const char* zeros, int64_t size) {
    alignas(64) char scratch[kChunk * sizeof(double)];
    std::memcpy(scratch, Variable(at, offset), size * step_.basics->element);
    UpdateRun(at, scratch, zeros, size);
  }

  // The rule, of a run of elements that has the same numbers of its row.
  void UpdateRun(int64_t at, char* variable, const char* gradient, int64_t size) {
    Locate(at);
    const bool is_packed = !piece_.packings.empty();
    void* wide = is_packed ? Unpack(at, variable, size) : variable;
    step_.update(wide, gradient, at_.data(), scalars_, piece_.scale, step_.limit, piece_.decay, size);
    if (is_packed) Pack(at, variable, size);
  }

  float* Buffer(size_t k) { return buffers_.data() + k * kChunk; }

  // What is packed goes to buffers, to which `at_` then points, but for the variable, whose place is returned.
  void* Unpack(int64_t at, char* variable, int64_t size) {
    const size_t last = piece_.packings.size() - 1;
    for (size_t k = 0; k <= last; ++k) {
      const Packing& packing = piece_.packings[k];
      if (packing.IsStoredWide()) continue;
      const char* stored = k == last ? variable : SlotAt(k, at);
      if (packing.book != nullptr) {
        step_.coding.unpack(packing.book, stored, packing.scales + at / kChunk, Buffer(k), size);
      } else {
        packing.basics->widen(stored, Buffer(k), size);
      }
      if (k != last) at_[k] = Buffer(k);
    }
    return piece_.packings[last].IsStoredWide() ? static_cast<void*>(variable) : Buffer(last);
  }

  void Pack(int64_t at, char* variable, int64_t size) {
    const size_t last = piece_.packings.size() - 1;
    for (size_t k = 0; k <= last; ++k) {
      const Packing& packing = piece_.packings[k];
      char* stored = k == last ? variable : SlotAt(k, at);
      if (packing.book != nullptr) {
        step_.coding.pack(packing.book, Buffer(k), stored, packing.scales + at / kChunk, size);
      } else if (packing.is_random) {
        packing.basics->round(Buffer(k), stored, packing.key, static_cast<uint32_t>(at), size);
      } else if (packing.basics != nullptr) {
        packing.basics->narrow(Buffer(k), stored, size);
      }
    }
  }

  char* SlotAt(size_t k, int64_t at) const {
    return piece_.slots[k] + at * (piece_.packings.empty() ? step_.basics->element : piece_.packings[k].element);
  }

  void Locate(int64_t at) {
    size_t next = 0;
    for (; next < piece_.slots.size(); ++next) at_[next] = SlotAt(next, at);
    for (int64_t k = 0; k < piece_.power_count; ++k) {
      const int64_t to = (k * piece_.stride + at - powers_.at) * step_.basics->wide;
      at_[next++] = const_cast<char*>(powers_.data == nullptr ? kZeros : powers_.data + to);
    }
    if (piece_.width == 0) return;
    const int64_t row = row_ >= 0 && at == (row_ + 1) * piece_.width ? row_ + 1 : at / piece_.width;  // division is slow
    if (row < matrix_ * piece_.height || row >= (matrix_ + 1) * piece_.height) matrix_ = row / piece_.height;
    const int64_t here = matrix_ * piece_.width + at - row * piece_.width;
    for (const auto& numbers : piece_.of_columns) at_[next++] = const_cast<double*>(numbers.data()) + here;
    for (double* sums : appended_) at_[next++] = sums + here - first_ * piece_.width;
    if (std::exchange(row_, row) == row) return;
    double* of_row = of_row_.data() + piece_.scalar_count;
    for (const auto& numbers : piece_.of_matrices) *of_row++ = numbers[matrix_];
    for (const auto& numbers : piece_.of_rows) *of_row++ = numbers[row];
  }

  char* Variable(int64_t at, int64_t offset) const {
    return piece_.variable + (piece_.is_part ? at : offset) * step_.basics->element;
  }

  // Elements without a gap: `at` is where slots and average begin, `offset` where they are in the shard.
  void Update(int64_t at, int64_t offset, const char* gradient, int64_t size, bool updates, bool is_wide = false) {
    const int64_t element = step_.basics->element, chunk = simple_ ? size : kChunk;
    for (int64_t done = 0; done < size; done += chunk) {
      const int64_t now = std::min(chunk, size - done);
      char* variable = Variable(at + done, offset + done);
      if (updates) Rule(at + done, variable, gradient, done, now, is_wide);
      if (simple_) continue;
      if (piece_.average != nullptr) {
        char* average = piece_.average + (at + done) * element;
        step_.basics->average(average, variable, step_.average_weight, step_.value_weight, now);
        if (step_.overwrite) std::memcpy(variable, average, now * element);
      }
      const int64_t bytes = piece_.rounding == nullptr ? element : piece_.rounded->element;
      const char* written = variable;
      if (piece_.rounding != nullptr) {
        written = piece_.rounding + (offset + done) * bytes;
        piece_.rounded->narrow(variable, piece_.rounding + (offset + done) * bytes, now);
      }
      for (char* replica : piece_.replicas) std::memcpy(replica + (offset + done) * bytes, written, now * bytes);
    }
  }

  void Rule(int64_t at, char* variable, const char* gradient, int64_t done, int64_t size, bool is_wide) {
    alignas(64) char wide[kChunk * sizeof(double)];
    const char* g = gradient + done * (is_wide ? step_.basics->wide : piece_.given->element);
    if (!is_wide) g = Widened(g, wide, size);
    const int64_t element = step_.basics->element, wide_element = step_.basics->wide;
    while (size > 0) {  // a row at a time, where rows matter
      const int64_t now = piece_.width == 0 ? size : std::min(size, piece_.width - at % piece_.width);
      UpdateRun(at, variable, g, now);
      at += now;
      size -= now;
      variable += now * element;
      g += now * wide_element;
    }
  }

  const char* Widened(const char* gradient, char* wide, int64_t size) const {
    if (!NeedsWidening()) return gradient;
    piece_.given->widen(gradient, wide, size);
    return wide;
  }

  static constexpr int64_t kNone = -1;
  alignas(64) static constexpr char kZeros[kChunk * sizeof(double)] = {};

  const Step& step_;
  const Piece& piece_;
  struct {
    const char* data = nullptr;  // those of the elements from `at` on; null: all zero
    int64_t at = 0;
  } powers_;
  absl::InlinedVector<void*, 4> at_;
  const double* scalars_;
  std::vector<double> of_row_;      // the scalars, and what is of the matrix and the row at hand
  std::vector<double*> appended_;
  std::vector<float> buffers_;      // kChunk of each packed array
  int64_t row_ = -1, matrix_ = 0, first_ = 0;
  bool simple_;
};

}  // namespace dtopt

#endif  // DTOPT_PIECES_H_
