// Warps on a CPU, for kernels that g++ compiles: each lane of a warp is a coroutine, and lanes wait for each other where they
// exchange numbers. The last lane goes first.

#ifndef DTOPT_LANES_H_
#define DTOPT_LANES_H_

#include <ucontext.h>

#include <cstdlib>
#include <functional>
#include <vector>

namespace {

constexpr int kOfWarp = 32;

class Warp {
 public:
  explicit Warp(std::function<void()> call) : call_(std::move(call)) {
    for (int lane = 0; lane < kOfWarp; ++lane) stacks_[lane].resize(kStack);
  }

  // All lanes, from thread number `first` of the block on.
  void Run(unsigned first) {
    current = this;
    for (int lane = 0; lane < kOfWarp; ++lane) {
      getcontext(&lanes_[lane]);
      lanes_[lane].uc_stack.ss_sp = stacks_[lane].data();
      lanes_[lane].uc_stack.ss_size = kStack;
      lanes_[lane].uc_link = &main_;
      makecontext(&lanes_[lane], Begin, 0);
      is_done_[lane] = false;
      exchanged_[lane] = 0;
    }
    for (int done = 0; done < kOfWarp;) {
      const int before = done;
      for (lane_ = kOfWarp - 1; lane_ >= 0; --lane_) {
        if (is_done_[lane_]) continue;
        threadIdx.x = first + lane_;
        swapcontext(&main_, &lanes_[lane_]);
        done += is_done_[lane_];
      }
      if (before > 0 && done < kOfWarp) std::abort();  // a lane waits for one that has returned
    }
  }

  // What lane `from` gives here, once all lanes are here.
  double Exchange(double mine, int from) {
    const int lane = lane_, buffer = exchanged_[lane]++ % 2;
    given_[buffer][lane] = mine;
    swapcontext(&lanes_[lane], &main_);
    if (exchanged_[from % kOfWarp] < exchanged_[lane]) std::abort();  // it takes part in another exchange
    return given_[buffer][from % kOfWarp];
  }

  int lane() const { return lane_; }

  static thread_local Warp* current;

 private:
  static constexpr size_t kStack = 256 * 1024;

  static void Begin() {
    Warp* const warp = current;
    warp->call_();
    warp->is_done_[warp->lane_] = true;
  }

  std::function<void()> call_;
  ucontext_t main_, lanes_[kOfWarp];
  std::vector<char> stacks_[kOfWarp];
  bool is_done_[kOfWarp];
  long exchanged_[kOfWarp];
  double given_[2][kOfWarp];
  int lane_ = 0;
};

thread_local Warp* Warp::current = nullptr;

inline double __shfl_sync(unsigned, double mine, int from) { return Warp::current->Exchange(mine, from); }

inline double __shfl_down_sync(unsigned, double mine, int by) {
  const int lane = Warp::current->lane();
  return Warp::current->Exchange(mine, lane + by < kOfWarp ? lane + by : lane);
}

template <typename Call>
void RunThreads(unsigned blocks, unsigned threads, const Call& call) {
  Warp warp(call);
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (unsigned first = 0; first < threads; first += kOfWarp) warp.Run(first);
  }
}

}  // namespace

#endif  // DTOPT_LANES_H_
