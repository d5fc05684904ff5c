// How what a rule adds up over a variable is divided, and where a GPU keeps it, for the host and for a GPU. The order of
// adding follows from it, and is the same on both.

#ifndef DTOPT_SUMS_H_
#define DTOPT_SUMS_H_

#ifndef DTOPT_FN
#define DTOPT_FN inline
#endif

namespace dtopt {

// How many there are of a slot or a sum. A variable of more than two dims is a batch of matrices, one of fewer is one row.
enum Shape { kFull, kRows, kColumns, kOne, kShapes };

constexpr int64_t kRunSize = 2048;                 // elements that are added up at a time: `kTerms` of abi.h
constexpr int64_t kFlatRow = 4096;                 // elements of a row, where rows do not matter
constexpr int64_t kMostBands = 64, kBandSize = 32 * 1024;  // parts of a variable, and the least elements of each

DTOPT_FN constexpr int64_t DividedUp(int64_t count, int64_t by) { return (count + by - 1) / by; }

// What one function of a rule makes of all elements, rows or columns, `over`: so many sums of all, of each matrix, of each
// row, and of each column. Where it visits rows or columns, the last two are no sums, but numbers that elements of that row
// or column need.
struct PassCounts {
  int64_t over = kFull, ones = 0, matrices = 0, rows = 0, columns = 0;

  DTOPT_FN constexpr bool is_full() const { return over == kFull; }
  DTOPT_FN constexpr int64_t row_sums() const { return is_full() ? rows : 0; }
  DTOPT_FN constexpr int64_t column_sums() const { return is_full() ? columns : 0; }
  DTOPT_FN constexpr int64_t sums() const { return ones + matrices + row_sums(); }  // that are added up along a run
};

// The elements of a variable: rows of all matrices, one after the other, in bands of whole rows. Each row is divided into
// runs of kRunSize elements.
struct Grid {
  int64_t size = 0, matrices = 1, rows = 0, columns = kFlatRow, bands = 1;

  static DTOPT_FN Grid Of(int64_t size, int64_t matrices, int64_t rows, int64_t columns) {
    const int64_t all = matrices * rows, most = all < kMostBands ? all : kMostBands;
    const int64_t wanted = DividedUp(size, kBandSize), bands = wanted < most ? wanted : most;
    return {size, matrices, rows, columns, bands < 1 ? 1 : bands};
  }
  static DTOPT_FN Grid OfElements(int64_t size) { return Of(size, 1, DividedUp(size, kFlatRow), kFlatRow); }

  // What a function visits: elements, or rows or columns, then those of a matrix are one row.
  DTOPT_FN Grid Over(int64_t over) const {
    if (over == kFull) return *this;
    const int64_t count = over == kRows ? rows : columns;
    return {matrices * count, matrices, 1, count, 1};
  }

  DTOPT_FN int64_t all_rows() const { return matrices * rows; }
  DTOPT_FN int64_t all_columns() const { return matrices * columns; }
  DTOPT_FN int64_t runs_of_row() const { return DividedUp(columns, kRunSize); }
  DTOPT_FN int64_t runs() const { return all_rows() * runs_of_row(); }
  DTOPT_FN int64_t begin(int64_t band) const { return all_rows() * band / bands; }  // its first row
  DTOPT_FN int64_t band_of(int64_t row) const { return DividedUp((row + 1) * bands, all_rows()) - 1; }
  // What a band has of a matrix is a part. That of band b and matrix m is part b + m: from each to the next at least one of
  // them is one more. If both are, a number in between is no part.
  DTOPT_FN int64_t parts() const { return bands + matrices - 1; }
};

// The rows of a part; none if it is no part.
struct Part {
  int64_t matrix = 0, begin = 0, end = 0;

  DTOPT_FN Part(const Grid& grid, int64_t number) {
    if (grid.all_rows() == 0) return;
    int64_t band = 0;
    for (int64_t stop = grid.bands; stop - band > 1;) {
      const int64_t middle = (band + stop) / 2;
      if (middle + grid.begin(middle) / grid.rows <= number) band = middle;
      else stop = middle;
    }
    matrix = number - band;
    const int64_t first = grid.begin(band), last = grid.begin(band + 1), here = matrix * grid.rows;
    begin = first > here ? first : here;
    end = last < here + grid.rows ? last : here + grid.rows;
  }
};

// The first part of a matrix, and the one after its last.
DTOPT_FN int64_t FirstPart(const Grid& grid, int64_t matrix) {
  return grid.rows == 0 ? 0 : grid.band_of(matrix * grid.rows) + matrix;
}
DTOPT_FN int64_t EndOfParts(const Grid& grid, int64_t matrix) {
  return grid.rows == 0 ? 0 : grid.band_of((matrix + 1) * grid.rows - 1) + matrix + 1;
}

// What all functions of a rule make.
struct Made {
  int64_t ones = 0, matrices = 0, row_sums = 0, of_rows = 0, column_sums = 0, of_columns = 0;

  // Of the first `count` passes.
  static DTOPT_FN constexpr Made By(const PassCounts* passes, int64_t count) {
    Made made;
    for (int64_t k = 0; k < count; ++k) {
      made.ones += passes[k].ones;
      made.matrices += passes[k].matrices;
      made.row_sums += passes[k].row_sums();
      made.of_rows += passes[k].rows - passes[k].row_sums();
      made.column_sums += passes[k].column_sums();
      made.of_columns += passes[k].columns - passes[k].column_sums();
    }
    return made;
  }
};

// Where in a GPU's memory these are for a variable, in float64: first those of all passes, then what a pass joins.
struct Places {
  int64_t matrices, row_sums, of_rows, column_sums, of_columns, runs;  // those of all come first

  DTOPT_FN Places(const Made& made, const Grid& grid) {
    matrices = made.ones;
    row_sums = matrices + made.matrices * grid.matrices;
    of_rows = row_sums + made.row_sums * grid.all_rows();
    column_sums = of_rows + made.of_rows * grid.all_rows();
    of_columns = column_sums + made.column_sums * grid.all_columns();
    runs = of_columns + made.of_columns * grid.all_columns();
  }
};

// And where, from `Places::runs` on, a pass over `grid` has the sums of runs, of bands and of parts.
struct Joined {
  int64_t ones, matrices, columns, end;

  DTOPT_FN Joined(const PassCounts& pass, const Grid& grid) {
    ones = pass.sums() * grid.runs();
    matrices = ones + pass.ones * grid.bands;
    columns = matrices + pass.matrices * grid.parts();
    end = columns + pass.column_sums() * grid.parts() * grid.columns;
  }
};

// The kernels of a step, by what their threads are.
enum Visit {
  kUpdateElements,
  kAddRuns,     // a warp: a run
  kAddColumns,  // a thread: a column of a part
  kJoinRuns,    // a warp: a sum of a band or part; a thread: a sum of a row or column
  kJoinParts,   // a thread: a sum of all or of a matrix
  kStoreRows,   // a thread: an element of the slots of that shape
  kStoreColumns,
  kStoreOne
};

constexpr int64_t kWarp = 32, kSumsThreads = 256;  // threads of a warp, and of a block of all visits but the first

// How many threads visit a variable.
DTOPT_FN int64_t ThreadsOf(Visit visit, const PassCounts& pass, const Grid& whole) {
  const Grid grid = whole.Over(pass.over);
  switch (visit) {
    case kAddRuns: return kWarp * grid.runs();
    case kAddColumns: return grid.parts() * grid.columns;
    case kJoinRuns:
      return kWarp * (pass.ones * grid.bands + pass.matrices * grid.parts() +
                      pass.row_sums() * DividedUp(grid.all_rows(), kWarp) +
                      pass.column_sums() * DividedUp(grid.all_columns(), kWarp));
    case kJoinParts: return pass.ones + pass.matrices * grid.matrices;
    case kStoreRows: return whole.all_rows();
    case kStoreColumns: return whole.all_columns();
    case kStoreOne: return 1;
    default: return 0;
  }
}

}  // namespace dtopt

#endif  // DTOPT_SUMS_H_
