// What Python calls without an op: functions for its own calling convention. Through ctypes each call takes
// microseconds, and tens of them after a step has moved megabytes through the caches.

#ifndef DTOPT_CALLS_H_
#define DTOPT_CALLS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gradients.h"
#include "scalars.h"
#include "update.h"

// Of Python's stable ABI, which holds for all versions. Its headers need not be installed where the kernel is compiled.
extern "C" {

struct _object;
struct _ts;
using PyObject = _object;
using Py_ssize_t = intptr_t;
struct PyMethodDef {
  const char* name;
  PyObject* (*function)(PyObject* self, PyObject* const* arguments, Py_ssize_t count);
  int flags;
  const char* doc;
};

extern PyObject* PyExc_RuntimeError;
void PyErr_SetString(PyObject* type, const char* message);
PyObject* PyErr_Occurred();
void* PyLong_AsVoidPtr(PyObject* number);
long long PyLong_AsLongLong(PyObject* number);
PyObject* PyLong_FromLongLong(long long number);
double PyFloat_AsDouble(PyObject* number);
PyObject* PyFloat_FromDouble(double number);
PyObject* PyBool_FromLong(long value);
PyObject* PyList_New(Py_ssize_t size);
Py_ssize_t PyList_Size(PyObject* list);
PyObject* PyList_GetItem(PyObject* list, Py_ssize_t position);
int PyList_Append(PyObject* list, PyObject* item);
void Py_DecRef(PyObject* object);
_ts* PyEval_SaveThread();
void PyEval_RestoreThread(_ts* state);

}  // extern "C"

namespace dtopt {

constexpr int kFastCall = 0x80;  // METH_FASTCALL

inline PyObject* Fail(const std::string& message) {
  PyErr_SetString(PyExc_RuntimeError, message.c_str());
  return nullptr;
}

// The items of a list, each read by `read`; where something is not what it should be, an error is set.
template <typename T, typename Read>
std::vector<T> Items(PyObject* list, const Read& read) {
  std::vector<T> items(std::max<Py_ssize_t>(PyList_Size(list), 0));
  for (size_t i = 0; i < items.size(); ++i) items[i] = read(PyList_GetItem(list, i));
  return items;
}

inline void Append(PyObject* list, PyObject* item) {
  PyList_Append(list, item);
  Py_DecRef(item);
}

inline PyObject* ListOf(const std::vector<int64_t>& numbers) {
  PyObject* list = PyList_New(0);
  for (const int64_t each : numbers) Append(list, PyLong_FromLongLong(each));
  return list;
}

inline const Runtime* RuntimeAt(PyObject* address) { return static_cast<const Runtime*>(PyLong_AsVoidPtr(address)); }

inline std::vector<const void*> Objects(PyObject* list) {
  return Items<const void*>(list, [](PyObject* item) { return item; });
}

// hold(runtime, tensors, expected): the number of the tensors' local parts, which are held until it is dropped, or a list
// of the positions of those that are not as expected; then nothing is held. expected: the address of what each is to be
// like, one after the other, or 0. Python's lock is kept, under which DTensor's meshes are registered: nothing changes while they are read.
inline PyObject* CallHold(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3) return Fail("hold takes 3 arguments");
  const auto objects = Objects(arguments[1]);
  const auto* expected = static_cast<const Expected*>(PyLong_AsVoidPtr(arguments[2]));
  if (PyErr_Occurred() != nullptr) return nullptr;
  auto held = std::make_shared<Held>();
  std::vector<int64_t> misfits;
  const absl::Status read = held->Read(*RuntimeAt(arguments[0]), objects, expected, &misfits);
  if (!read.ok()) return Fail(absl::StrCat("the gradients cannot be read: ", read.message()));
  return misfits.empty() ? PyLong_FromLongLong(Holding::Add(std::move(held))) : ListOf(misfits);
}

// sort(runtime, values, indices, limit, powers): the number of IndexedSlices, in float32 or float64, of a table with so
// many rows; of each gradient these powers are added up, too, as `Basics` has them.
inline PyObject* CallSort(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 5) return Fail("sort takes 5 arguments");
  const std::vector<const void*> objects = {arguments[1], arguments[2]};
  const int64_t limit = PyLong_AsLongLong(arguments[3]);
  const auto powers = Items<int64_t>(arguments[4], PyLong_AsLongLong);
  const Runtime* runtime = RuntimeAt(arguments[0]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  auto held = std::make_shared<Held>();
  std::vector<int64_t> misfits;
  absl::Status done = held->Read(*runtime, objects, nullptr, &misfits);
  if (done.ok() && held->tensors.size() != objects.size()) done = InvalidArgument("values or indices are on a mesh");
  if (done.ok()) {
    _ts* const state = PyEval_SaveThread();
    done = SortHeld(held.get(), limit, powers);
    PyEval_RestoreThread(state);
  }
  return done.ok() ? PyLong_FromLongLong(Holding::Add(std::move(held))) : Fail(std::string(done.message()));
}

// squares(group, held, sources): the sum of squares of each of the tensors at `sources` of what is held.
inline PyObject* CallSquares(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3) return Fail("squares takes 3 arguments");
  const int64_t group = PyLong_AsLongLong(arguments[0]), held = PyLong_AsLongLong(arguments[1]);
  const auto sources = Items<int64_t>(arguments[2], PyLong_AsLongLong);
  if (PyErr_Occurred() != nullptr) return nullptr;
  std::vector<double> sums;
  _ts* const state = PyEval_SaveThread();
  const absl::Status done = Squares(group, held, sources, &sums);
  PyEval_RestoreThread(state);
  if (!done.ok()) return Fail(std::string(done.message()));
  PyObject* list = PyList_New(0);
  for (const double sum : sums) Append(list, PyFloat_FromDouble(sum));
  return list;
}

// drop(number)
inline PyObject* CallDrop(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 1) return Fail("drop takes 1 argument");
  const int64_t number = PyLong_AsLongLong(arguments[0]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  Holding::Drop(number);
  return PyBool_FromLong(1);
}

// read(number): the value of the one variable in a group; False if it is not there, has none, or is no scalar of a dtype
// that is known here.
inline PyObject* CallRead(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 1) return Fail("read takes 1 argument");
  const int64_t number = PyLong_AsLongLong(arguments[0]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  double value;
  return ReadScalar(number, &value) ? PyFloat_FromDouble(value) : PyBool_FromLong(0);
}

// write(number, value): whether it could be given that value.
inline PyObject* CallWrite(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) return Fail("write takes 2 arguments");
  const int64_t number = PyLong_AsLongLong(arguments[0]);
  const double value = PyFloat_AsDouble(arguments[1]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  return PyBool_FromLong(WriteScalar(number, value));
}

// control(group, held, sources, numbers): the number under which that is held which a GPU makes of the gradients at
// `sources`: whether the step is left out, and their scales. numbers: what they are multiplied by, the limit of norms or 0,
// whether the norm is that of all, and whether a step is left out if one of them is not finite.
inline PyObject* CallControl(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 4) return Fail("control takes 4 arguments");
  const int64_t group = PyLong_AsLongLong(arguments[0]), held = PyLong_AsLongLong(arguments[1]);
  const auto sources = Items<int64_t>(arguments[2], PyLong_AsLongLong);
  const auto numbers = Items<double>(arguments[3], PyFloat_AsDouble);
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (numbers.size() != 4) return Fail("control takes 4 numbers");
  Scaling wants = {};
  wants.scale = numbers[0];
  wants.limit = numbers[1];
  wants.clips = numbers[1] > 0;
  wants.is_joint = numbers[2] != 0;
  wants.checks = numbers[3] != 0;
  auto made = std::make_shared<Held>();
  const absl::Status done = Control(group, held, sources, wants, made.get());
  return done.ok() ? PyLong_FromLongLong(Holding::Add(std::move(made))) : Fail(std::string(done.message()));
}

// is_left_out(control): whether the step of what `control` made was left out. Waits until that is known.
inline PyObject* CallIsLeftOut(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 1) return Fail("is_left_out takes 1 argument");
  const int64_t control = PyLong_AsLongLong(arguments[0]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  bool is_left_out = false;
  _ts* const state = PyEval_SaveThread();
  const absl::Status done = IsLeftOut(control, &is_left_out);
  PyEval_RestoreThread(state);
  return done.ok() ? PyBool_FromLong(is_left_out) : Fail(std::string(done.message()));
}

// update(group, held, options, scales, decays, rows, overwrite, control, packing): a step of a group, with gradients that are held.
// options: the limit that gradients are clipped to, the weights of the old average and of the variable in the new one;
// behind these three stand the rule's scalars. scales, decays: one number for each variable, or none. rows: for each
// variable whose gradient is rows, where in what is held these are, ascending, each once, those of the whole table, and on a
// GPU, if the rule needs them, the sums of powers next to these; or -2
// minus the number under which `sort` has them; -1 for the others, nothing if there are none. control: the number of what
// `control` made, of which scales are then the places, or -1. packing: nothing, or where slots or variables are in few bits
// the key of the step's noise, or -1 if there is none; whether variables are rounded with it; of each slot, then of each
// variable the number that `array_key` of optim/bits/noise.py takes. Ops have it behind the three options. Where it raises, nothing was changed. Other Python threads go on meanwhile.
inline PyObject* CallUpdate(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 9) return Fail("update takes 9 arguments");
  const int64_t group = PyLong_AsLongLong(arguments[0]), held = PyLong_AsLongLong(arguments[1]);
  Numbers numbers;
  numbers.scalars = Items<double>(arguments[2], PyFloat_AsDouble);
  const auto third = numbers.scalars.begin() + std::min<size_t>(numbers.scalars.size(), 3);
  numbers.options.assign(numbers.scalars.begin(), third);
  numbers.scalars.erase(numbers.scalars.begin(), third);
  numbers.scales = Items<double>(arguments[3], PyFloat_AsDouble);
  numbers.decays = Items<double>(arguments[4], PyFloat_AsDouble);
  const auto rows = Items<int64_t>(arguments[5], PyLong_AsLongLong);
  numbers.overwrite = PyLong_AsLongLong(arguments[6]) != 0;
  const int64_t control = PyLong_AsLongLong(arguments[7]);
  numbers.packing = Items<double>(arguments[8], PyFloat_AsDouble);
  if (PyErr_Occurred() != nullptr) return nullptr;
  _ts* const state = PyEval_SaveThread();
  const absl::Status done = Update(group, held, rows, control, &numbers);
  PyEval_RestoreThread(state);
  return done.ok() ? PyBool_FromLong(1) : Fail(absl::StrCat("the kernel cannot step: ", done.message()));
}

}  // namespace dtopt

extern "C" {
__attribute__((visibility("default"), used)) PyMethodDef dtopt_functions[] = {
    {"hold", dtopt::CallHold, dtopt::kFastCall, nullptr}, {"drop", dtopt::CallDrop, dtopt::kFastCall, nullptr},
    {"read", dtopt::CallRead, dtopt::kFastCall, nullptr}, {"write", dtopt::CallWrite, dtopt::kFastCall, nullptr},
    {"sort", dtopt::CallSort, dtopt::kFastCall, nullptr}, {"squares", dtopt::CallSquares, dtopt::kFastCall, nullptr},
    {"update", dtopt::CallUpdate, dtopt::kFastCall, nullptr}, {"control", dtopt::CallControl, dtopt::kFastCall, nullptr},
    {"is_left_out", dtopt::CallIsLeftOut, dtopt::kFastCall, nullptr},
};
}

#endif  // DTOPT_CALLS_H_
