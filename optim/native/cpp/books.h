// The code books of 8 bits, which Python gives.

#ifndef DTOPT_BOOKS_H_
#define DTOPT_BOOKS_H_

#include <cstdint>
#include <cstring>

#include "packed.h"
#include "tensorflow/core/framework/types.pb.h"

namespace dtopt {

// By type of the codes: of any numbers, and of such that are not negative.
class Books {
 public:
  static const DtoptBook* Of(tensorflow::DataType dtype) {
    return dtype == tensorflow::DT_INT8 ? &all()[0] : dtype == tensorflow::DT_UINT8 ? &all()[1] : nullptr;
  }

  static constexpr int64_t kCount = 2;
  static const DtoptBook* First() { return all(); }

  // values: in ascending order.
  static void Set(bool is_signed, const float* values, const uint32_t* steps) {
    DtoptBook& book = all()[is_signed ? 0 : 1];
    book.flip = is_signed ? 0x80 : 0;
    for (int code = 0; code < 256; ++code) book.values[code ^ book.flip] = values[code];
    std::memcpy(book.steps, steps, sizeof book.steps);
  }

 private:
  static DtoptBook* all() { static auto* it = new DtoptBook[kCount](); return it; }
};

}  // namespace dtopt

#endif  // DTOPT_BOOKS_H_
