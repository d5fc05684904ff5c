// Tells DTensor's compiler that one of our ops is its own expansion: every device runs it on its parts. TensorFlow has a
// class for that, which its own fused updates use (NoOpSPMDExpander), but no public way to name further ops.

#ifndef DTOPT_SPMD_H_
#define DTOPT_SPMD_H_

#include <memory>
#include <string>
#include <utility>

namespace dtopt {

// What DTensor keeps for an op, as far as its owner needs to know it.
class Expander {
 public:
  virtual ~Expander() = default;
};

// Of tensorflow::dtensor::SPMDExpanderRegistry, which TensorFlow's wheel has no header for.
struct Spmd {
  void* (*registry)();
  void* (*find)(void* registry, const std::string& op);  // null: there is none
  void (*add)(void* registry, std::string op, std::unique_ptr<Expander> expander);
  const char* vtable;  // of NoOpSPMDExpander
};

}  // namespace dtopt

// Called through ctypes. `like`: an op of TensorFlow's that is its own expansion. False: something is not as expected, and
// nothing was changed.
extern "C" inline __attribute__((visibility("default"), used)) bool DtoptExpandLike(const dtopt::Spmd* spmd,
                                                                                   const char* op, const char* like) {
  // A virtual table starts with two words that no object points to. The class has no data, so that this word is all.
  const auto is_own = [&](void* expander) {
    return expander != nullptr && *static_cast<const char**>(expander) == spmd->vtable + 2 * sizeof(void*);
  };
  void* registry = spmd->registry();
  void* model = spmd->find(registry, like);
  if (!is_own(model)) return false;
  if (void* known = spmd->find(registry, op)) return is_own(known);
  void** made = static_cast<void**>(::operator new(sizeof(void*)));
  *made = *static_cast<void**>(model);
  spmd->add(registry, op, std::unique_ptr<dtopt::Expander>(reinterpret_cast<dtopt::Expander*>(made)));
  return spmd->find(registry, op) == made;
}

#endif  // DTOPT_SPMD_H_
