// Warps on a CPU, for kernels that g++ compiles: each thread is a coroutine, and threads wait for each other where they
// exchange numbers. The last one goes first.

#ifndef DTOPT_LANES_H_
#define DTOPT_LANES_H_

#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#define __shared__ static thread_local

namespace {

constexpr int kOfWarp = 32;

// Threads that go on together: those of a warp, or of a block.
class Threads {
 public:
  Threads(unsigned count, std::function<void()> call) : call_(std::move(call)), all_(count) {
    for (Thread& thread : all_) thread.stack.reset(new char[kStack]);
  }

  // All of them, from number `first` of the block on.
  void Run(unsigned first) {
    current = this;
    for (Thread& thread : all_) {
      getcontext(&thread.context);
      thread.context.uc_stack.ss_sp = thread.stack.get();
      thread.context.uc_stack.ss_size = kStack;
      thread.context.uc_link = &main_;
      makecontext(&thread.context, Begin, 0);
      thread.is_done = false;
      thread.waited = 0;
    }
    const int count = all_.size();
    for (int done = 0; done < count;) {
      const int before = done;
      for (at_ = count - 1; at_ >= 0; --at_) {
        if (all_[at_].is_done) continue;
        threadIdx.x = first + at_;
        swapcontext(&main_, &all_[at_].context);
        done += all_[at_].is_done;
      }
      if (before > 0 && done < count) std::abort();  // a thread waits for one that has returned
    }
  }

  // Waits for all.
  void Wait() {
    Thread& me = all_[at_];
    ++me.waited;
    swapcontext(&me.context, &main_);
  }

  // What lane `from` of the thread's warp gives here, once all are here.
  double Exchange(double mine, int from) {
    Thread &me = all_[at_], &other = all_[at_ / kOfWarp * kOfWarp + from % kOfWarp];
    const int buffer = me.waited % 2;
    me.given[buffer] = mine;
    Wait();
    if (other.waited < me.waited) std::abort();  // it takes part in another exchange
    return other.given[buffer];
  }

  int lane() const { return at_ % kOfWarp; }

  static thread_local Threads* current;

 private:
  static constexpr size_t kStack = 256 * 1024;

  struct Thread {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    bool is_done = false;
    long waited = 0;
    double given[2];
  };

  static void Begin() {
    Threads* const all = current;
    all->call_();
    all->all_[all->at_].is_done = true;
  }

  std::function<void()> call_;
  ucontext_t main_;
  std::vector<Thread> all_;
  int at_ = 0;
};

thread_local Threads* Threads::current = nullptr;

inline double __shfl_sync(unsigned, double mine, int from) { return Threads::current->Exchange(mine, from); }

inline double __shfl_down_sync(unsigned, double mine, int by) {
  const int lane = Threads::current->lane();
  return Threads::current->Exchange(mine, lane + by < kOfWarp ? lane + by : lane);
}

inline uint32_t __shfl_xor_sync(unsigned, uint32_t mine, int by) {
  return static_cast<uint32_t>(Threads::current->Exchange(mine, Threads::current->lane() ^ by));
}

inline void __syncthreads() { Threads::current->Wait(); }

inline void atomicMax(uint32_t* to, uint32_t number) { *to = std::max(*to, number); }

// Warp by warp, or, if threads of different warps wait for each other, all of a block.
template <typename Call>
void RunThreads(unsigned blocks, unsigned threads, const Call& call, unsigned together = kOfWarp) {
  Threads all(together, call);
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    for (unsigned first = 0; first < threads; first += together) all.Run(first);
  }
}

template <typename Call>
void RunBlocks(unsigned blocks, unsigned threads, const Call& call) {
  RunThreads(blocks, threads, call, threads);
}

}  // namespace

#endif  // DTOPT_LANES_H_
