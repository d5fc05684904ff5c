// Rules, as in optim/rules: given the gradient and the variable (after weight decay), the new slots are left in `s` and
// the change of the variable is returned. Each is made from its scalars in the order that programs.py lists.

#ifndef DTOPT_RULES_H_
#define DTOPT_RULES_H_

#include <cmath>

#include "numbers.h"

namespace dtopt {

template <typename C>
struct Slots {  // of one element; a rule with fewer leaves the last alone
  C a, b, c;
};

template <typename C>
struct Sgd {
  static constexpr int kSlots = 0, kScalars = 1;
  C lr;
  explicit Sgd(const C* c) : lr(c[0]) {}
  C operator()(C g, C, Slots<C>&) const { return -lr * g; }
};

template <typename C, bool kNesterov>
struct Momentum {  // the learning rate is inside the slot or outside: the other factor is 1
  static constexpr int kSlots = 1, kScalars = 3;
  C inside, outside, momentum;
  explicit Momentum(const C* c) : inside(c[0]), outside(c[1]), momentum(c[2]) {}
  C operator()(C g, C, Slots<C>& s) const {
    const C step = inside * g;
    s.a = momentum * s.a + step;
    return outside * (kNesterov ? momentum * s.a + step : s.a);
  }
};

template <typename C, bool kAmsgrad>
struct Adam {
  static constexpr int kSlots = kAmsgrad ? 3 : 2, kScalars = 4;
  C alpha, rest_1, rest_2, epsilon;
  explicit Adam(const C* c) : alpha(c[0]), rest_1(c[1]), rest_2(c[2]), epsilon(c[3]) {}
  C operator()(C g, C, Slots<C>& s) const {
    s.a = s.a + rest_1 * (g - s.a);
    s.b = s.b + rest_2 * (g * g - s.b);
    C v = s.b;
    if constexpr (kAmsgrad) v = s.c = Max(s.c, v);
    return -alpha * s.a / (std::sqrt(v) + epsilon);
  }
};

template <typename C, bool kNewDelta>
struct Adadelta {
  static constexpr int kSlots = 2, kScalars = 4;
  C lr, rho, rest, epsilon;
  explicit Adadelta(const C* c) : lr(c[0]), rho(c[1]), rest(c[2]), epsilon(c[3]) {}
  C operator()(C g, C, Slots<C>& s) const {
    s.a = rho * s.a + rest * (g * g);
    const C root = std::sqrt(s.a + epsilon);
    C step = g * std::sqrt(s.b + epsilon) / root;
    s.b = rho * s.b + rest * (step * step);
    if constexpr (kNewDelta) step = g * std::sqrt(s.b + epsilon) / root;
    return -lr * step;
  }
};

// Where epsilon may be inside or outside the root, the other one is 0, which changes nothing.

template <typename C>
struct Adagrad {
  static constexpr int kSlots = 1, kScalars = 3;
  C lr, inside, outside;
  explicit Adagrad(const C* c) : lr(c[0]), inside(c[1]), outside(c[2]) {}
  C operator()(C g, C, Slots<C>& s) const {
    s.a = s.a + g * g;
    return -lr * g / (std::sqrt(s.a + inside) + outside);
  }
};

template <typename C, bool kMomentum, bool kCentered>
struct RMSprop {  // slots: velocity, then momentum, then average_gradient
  static constexpr int kSlots = 1 + kMomentum + kCentered, kScalars = 7;
  C rho, rest, inside, outside, lr_inside, lr_outside, momentum;
  explicit RMSprop(const C* c)
      : rho(c[0]), rest(c[1]), inside(c[2]), outside(c[3]), lr_inside(c[4]), lr_outside(c[5]), momentum(c[6]) {}
  C operator()(C g, C, Slots<C>& s) const {
    s.a = rho * s.a + rest * (g * g);
    C spread = s.a;
    if constexpr (kCentered) {
      C& average = kMomentum ? s.c : s.b;
      average = rho * average + rest * g;
      spread = Max(s.a - average * average, C(0));
    }
    C step = lr_inside * g / (std::sqrt(spread + inside) + outside);
    if constexpr (kMomentum) step = s.b = momentum * s.b + step;
    return -lr_outside * step;
  }
};

template <typename C>
struct Lion {
  static constexpr int kSlots = 1, kScalars = 5;
  C lr, beta_1, rest_1, beta_2, rest_2;
  explicit Lion(const C* c) : lr(c[0]), beta_1(c[1]), rest_1(c[2]), beta_2(c[3]), rest_2(c[4]) {}
  C operator()(C g, C, Slots<C>& s) const {
    const C x = beta_1 * s.a + rest_1 * g;
    s.a = beta_2 * s.a + rest_2 * g;
    return -lr * (x > 0 ? C(1) : x < 0 ? C(-1) : x);  // the sign of 0 is 0 and that of NaN is NaN
  }
};

template <typename C>
struct Adamax {
  static constexpr int kSlots = 2, kScalars = 4;
  C alpha, rest_1, beta_2, epsilon;
  explicit Adamax(const C* c) : alpha(c[0]), rest_1(c[1]), beta_2(c[2]), epsilon(c[3]) {}
  C operator()(C g, C, Slots<C>& s) const {
    s.a = s.a + rest_1 * (g - s.a);
    s.b = Max(beta_2 * s.b, std::abs(g));
    return -alpha * s.a / (s.b + epsilon);
  }
};

template <typename C>
struct Nadam {
  static constexpr int kSlots = 2, kScalars = 6;
  C rest_1, rest_2, m_weight, g_weight, v_correction, epsilon;
  explicit Nadam(const C* c)
      : rest_1(c[0]), rest_2(c[1]), m_weight(c[2]), g_weight(c[3]), v_correction(c[4]), epsilon(c[5]) {}
  C operator()(C g, C, Slots<C>& s) const {
    s.a = s.a + rest_1 * (g - s.a);
    s.b = s.b + rest_2 * (g * g - s.b);
    return -(m_weight * s.a + g_weight * g) / (std::sqrt(v_correction * s.b) + epsilon);
  }
};

template <typename C>
struct Ftrl {  // the one rule that looks at the variable, `w`
  static constexpr int kSlots = 2, kScalars = 6;
  C scale, per_power, exponent, l1, l2, shrinkage;  // exponent: of the accumulator; shrinkage: twice
  explicit Ftrl(const C* c)
      : scale(c[0]), per_power(c[1]), exponent(c[2]), l1(c[0] * c[3]), l2(C(2) * (c[0] * c[4])), shrinkage(c[5]) {}
  C Power(C x) const { return exponent == C(0.5) ? std::sqrt(x) : std::pow(x, exponent); }
  C operator()(C g, C w, Slots<C>& s) const {
    const C old_power = Power(s.a);
    s.a = s.a + g * g;
    const C new_power = Power(s.a);
    const C sigma = per_power * (new_power - old_power);
    s.b = s.b + scale * (g + shrinkage * w) - sigma * w;
    return (Clip(s.b, l1) - s.b) / (per_power * new_power + l2) - w;
  }
};

}  // namespace dtopt

#endif  // DTOPT_RULES_H_
