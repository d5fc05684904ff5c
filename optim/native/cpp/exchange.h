// Parts of shards on GPUs: copies of them, and how GPUs that have the same shard bring each other the parts that they have
// updated. No TensorFlow, so that tests run it with a driver of their own.

#ifndef DTOPT_EXCHANGE_H_
#define DTOPT_EXCHANGE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "box.h"
#include "driver.h"

namespace dtopt {

// Where the elements of a box are: in a shard, or one after the other.
struct Elements {
  CuAddress begin = 0;
  CuContext context = nullptr;
  bool is_shard = true;
};

// Copies the elements of a box, of so many bytes each, in the order of a stream whose context is current.
inline Problem CopyBox(const Driver& driver, CuStream stream, const Box& box, int64_t bytes, const Elements& from,
                       const Elements& to) {
  const int64_t in_a_level = box.levels.empty() ? 1 : box.levels.back().first, levels = box.Size() / box.run / in_a_level;
  const auto address = [&](const Elements& of, int64_t level) {
    return of.begin + bytes * (of.is_shard ? box.Offset(level * in_a_level) : level * in_a_level * box.run);
  };
  CuResult result = 0;
  for (int64_t level = 0; level < levels && result == 0; ++level) {
    if (box.levels.empty()) {
      result = driver.copy_between(address(to, 0), to.context, address(from, 0), from.context, bytes * box.run, stream);
      continue;
    }
    const auto pitch = [&](const Elements& of) { return bytes * (of.is_shard ? box.levels.back().second : box.run); };
    CuCopy copy;
    copy.from.address = address(from, level);
    copy.from.context = from.context;
    copy.from.pitch = pitch(from);
    copy.to.address = address(to, level);
    copy.to.context = to.context;
    copy.to.pitch = pitch(to);
    copy.from.height = copy.to.height = copy.height = in_a_level;
    copy.width = bytes * box.run;
    result = driver.copy_rows(&copy, stream);
  }
  return result == 0 ? "" : driver.Text("copying a part of a variable", result);
}

// A part of a shard that the GPU of a stream has updated, and the same shard on other GPUs, by their streams.
struct GpuPart {
  CuStream stream = nullptr;
  CuAddress shard = 0;
  const Box* box = nullptr;
  int64_t bytes = 0;  // of an element
  std::vector<std::pair<CuStream, CuAddress>> replicas;
};

// Events by stream, made at the first use, and never freed. Whoever waits for an event that was recorded once more waits
// for more than is needed, and for nothing less.
class Events {
 public:
  // Of a stream whose context is current.
  Problem Record(const Driver& driver, CuStream stream, CuEvent* recorded) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      CuEvent& event = events_[stream];
      if (event == nullptr) {
        const CuResult result = driver.make_event(&event, kNoTiming);
        if (result != 0) event = nullptr;
        if (result != 0) return driver.Text("making an event", result);
      }
      *recorded = event;
    }
    const CuResult result = driver.record(*recorded, stream);
    return result == 0 ? "" : driver.Text("recording an event", result);
  }

 private:
  std::mutex mutex_;
  std::map<CuStream, CuEvent> events_;
};

// Brings the parts that GPUs have updated to the other GPUs that have the same shards, without a wait of the host: each GPU
// fetches what is new once the one that has it is done, and that one continues when it was fetched.
class Exchange {
 public:
  Exchange(const Driver& driver, Events* events) : driver_(driver), events_(events) {}

  Problem Run(const std::vector<GpuPart>& parts) {
    for (const GpuPart& part : parts) {
      for (const auto& [stream, shard] : part.replicas) from_[stream].insert(part.stream);
      for (const auto& [stream, shard] : part.replicas) to_[part.stream].insert(stream);
    }
    Problem problem = RecordAll(to_);
    for (const auto& [stream, sources] : from_) {
      if (problem.empty()) problem = Fetch(stream, sources, parts);
    }
    if (problem.empty()) problem = RecordAll(from_);
    for (const auto& [stream, readers] : to_) {
      if (problem.empty()) problem = WaitFor(stream, readers);
    }
    return problem;
  }

 private:
  using Streams = std::map<CuStream, std::set<CuStream>>;

  Problem RecordAll(const Streams& streams) {
    for (const auto& [stream, others] : streams) {
      const Current current(driver_, stream);
      if (!current.problem().empty()) return current.problem();
      contexts_[stream] = current.context();
      const Problem problem = events_->Record(driver_, stream, &recorded_[stream]);
      if (!problem.empty()) return problem;
    }
    return "";
  }

  Problem WaitFor(CuStream stream, const std::set<CuStream>& others) {
    const Current current(driver_, stream);
    if (!current.problem().empty()) return current.problem();
    for (CuStream other : others) {
      const CuResult result = driver_.wait_on_gpu(stream, recorded_[other], 0);
      if (result != 0) return driver_.Text("waiting for another GPU", result);
    }
    return "";
  }

  Problem Fetch(CuStream stream, const std::set<CuStream>& sources, const std::vector<GpuPart>& parts) {
    Problem problem = WaitFor(stream, sources);
    const Current current(driver_, stream);
    if (problem.empty()) problem = current.problem();
    for (const GpuPart& part : parts) {
      for (const auto& [to, shard] : part.replicas) {
        if (to != stream || !problem.empty()) continue;
        const Elements theirs{part.shard, contexts_[part.stream]}, mine{shard, current.context()};
        problem = CopyBox(driver_, stream, *part.box, part.bytes, theirs, mine);
      }
    }
    return problem;
  }

  const Driver& driver_;
  Events* const events_;
  Streams from_, to_;  // of each stream those whose parts it fetches, and those that fetch its parts
  std::map<CuStream, CuEvent> recorded_;
  std::map<CuStream, CuContext> contexts_;
};

}  // namespace dtopt

#endif  // DTOPT_EXCHANGE_H_
