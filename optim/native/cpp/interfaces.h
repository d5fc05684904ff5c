// What TensorFlow knows of each op: inputs, outputs and attributes.

#ifndef DTOPT_INTERFACES_H_
#define DTOPT_INTERFACES_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace dtopt {

inline absl::Status VectorShape(tensorflow::shape_inference::InferenceContext* context) {
  context->set_output(0, context->UnknownShapeOfRank(1));
  return absl::OkStatus();
}

inline absl::Status TwoScalars(tensorflow::shape_inference::InferenceContext* context) {
  context->set_output(0, context->Scalar());
  context->set_output(1, context->Scalar());
  return absl::OkStatus();
}

// boxes: for each variable whose slots are divided further than it is: its index, then `first`, `run`, the number of
// levels and their (count, stride) of the struct Box. sources: where in what is held the gradient of each variable is.
// regions: for each variable, or none at all, where in the whole table its part begins, and the columns of the table, the
// struct Region. others: what happens to rows without a gradient, by variable, as the enum Others counts, or nothing.
// number: what DtoptJoin calls this group.
REGISTER_OP("DtoptGroup")
    .Input("variables: N * resource")
    .Input("slots: S * resource")
    .Input("averages: A * resource")
    .Input("roundings: R * resource")
    .Input("boxes: int64")
    .Input("sources: int64")
    .Input("regions: int64")
    .Input("others: int64")
    .Output("group: resource")
    .Output("number: int64")
    .Attr("N: int >= 1")
    .Attr("S: int >= 0")
    .Attr("A: int >= 0")
    .Attr("R: int >= 0")
    .SetIsStateful()
    .SetShapeFn(TwoScalars);

// shapes: how many slots there are of each shape, passes: what is added up, powers: of which sums are needed, as
// `Stepper::Init` takes them. number: what `update` of calls.h calls this group.
REGISTER_OP("DtoptJoin")
    .Input("numbers: int64")
    .Input("links: int64")
    .Output("group: resource")
    .Output("number: int64")
    .Attr("T: {float, double, bfloat16, half}")
    .Attr("rule: string")
    .Attr("shapes: list(int)")
    .Attr("passes: list(int)")
    .Attr("powers: list(int)")
    .Attr("scalars_of_all: int >= 0")
    .Attr("identity_at_zero: bool")
    .SetIsStateful()
    .SetShapeFn(TwoScalars);

// gradients: of each variable, and then on a GPU, of each of `sparse`, the sums of powers of its rows, if the rule needs them.
// scales, decays, options: as `update` of calls.h takes them. group: the number of a group, whose variables, or else roundings, `variables` has; or no number, where
// all are given by their handles. sparse: which gradients are rows, those of `rows` (ascending, each once) in order.
// totals: the number of rows of each table, where `rows` and their values are as IndexedSlices have them, those of all
// devices. active: which variables take part, or none for all. gathered: which gradients are the mean over `calls` calls of
// rows in the sums that `windows` says, see windows.h, times a scale and then clipped to a limit, two `meanings` for each;
// limits: the rows of each such table. others: for each variable what happens to rows without a gradient, as the enum
// Others counts; nothing with a group, which knows. control: what DtoptControl made, of which scales are then the places, or
// nothing.
#define DTOPT_STEP(name) \
  REGISTER_OP(name) \
      .Input("variables: N * resource") \
      .Input("slots: S * resource") \
      .Input("averages: A * resource") \
      .Input("roundings: R * resource") \
      .Input("group: int64") \
      .Input("gradients: G") \
      .Input("rows: K * int64") \
      .Input("windows: M * int64") \
      .Input("meanings: float64") \
      .Input("scalars: float64") \
      .Input("scales: float64") \
      .Input("decays: float64") \
      .Input("options: float64") \
      .Input("active: bool") \
      .Input("overwrite: bool") \
      .Input("control: float64") \
      .Attr("N: int >= 1") \
      .Attr("S: int >= 0") \
      .Attr("A: int >= 0") \
      .Attr("R: int >= 0") \
      .Attr("K: int >= 0") \
      .Attr("M: int >= 0") \
      .Attr("G: list({float, double, bfloat16, half}) >= 1") \
      .Attr("T: {float, double, bfloat16, half}") \
      .Attr("rule: string") \
      .Attr("shapes: list(int)") \
      .Attr("passes: list(int)") \
      .Attr("powers: list(int)") \
      .Attr("scalars_of_all: int >= 0") \
      .Attr("identity_at_zero: bool") \
      .Attr("sparse: list(int) >= 0") \
      .Attr("others: list(int) >= 0") \
      .Attr("totals: list(int) >= 0") \
      .Attr("gathered: list(int) >= 0") \
      .Attr("limits: list(int) >= 0") \
      .Attr("calls: int") \
      .SetIsStateful() \
      .SetShapeFn(tensorflow::shape_inference::NoOutputs)

DTOPT_STEP("DtoptStep");

// What `Table` says of the sums of rows of `IndexedSlices` on a GPU. powers: of which sums are made, too, as `Basics` has
// them. named, order: their indices in ascending order, and where
// each of them was. rows: of the table. of: its name. W: float32, or float64 if T is.
REGISTER_OP("DtoptTable")
    .Input("values: T")
    .Input("named: int64")
    .Input("order: int64")
    .Output("sums: W")
    .Output("table: int64")
    .Output("sums_of_powers: W")
    .Attr("T: {float, double, bfloat16, half}")
    .Attr("W: {float, double}")
    .Attr("rows: int")
    .Attr("is_dense: bool")
    .Attr("powers: list(int)")
    .Attr("of: string")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      int64_t rows;
      bool is_dense;
      TF_RETURN_IF_ERROR(context->GetAttr("rows", &rows));
      TF_RETURN_IF_ERROR(context->GetAttr("is_dense", &is_dense));
      tensorflow::shape_inference::ShapeHandle sums = context->input(0);
      if (is_dense) TF_RETURN_IF_ERROR(context->ReplaceDim(sums, 0, context->MakeDim(rows), &sums));
      context->set_output(0, sums);
      context->set_output(1, is_dense ? context->Vector(0) : context->input(1));
      context->set_output(2, context->UnknownShape());
      return absl::OkStatus();
    });

// What a GPU makes of the gradients of a step for DtoptStep. numbers: what they are multiplied by, and the limit of norms or
// 0. is_joint: whether the norm is that of all. checks: whether the step is left out if one of them is not finite. control:
// not 0 if it is left out, then the scale of each gradient.
REGISTER_OP("DtoptControl")
    .Input("gradients: G")
    .Input("numbers: float64")
    .Output("control: float64")
    .Attr("G: list({float, double, bfloat16, half}) >= 1")
    .Attr("is_joint: bool")
    .Attr("checks: bool")
    .SetIsStateful()
    .SetShapeFn(VectorShape);

// The same of a group that is joined: each device has such an op, and the last of them steps the variables of all.
DTOPT_STEP("DtoptStepTogether");

// The sum of squares of each of the tensors at `sources` of what is held, NaN or infinite if one of its elements is.
REGISTER_OP("DtoptSquares")
    .Input("held: int64")
    .Input("sources: int64")
    .Output("sums: float64")
    .SetIsStateful()
    .SetShapeFn(VectorShape);

REGISTER_OP("DtoptSquareSums")
    .Input("tensors: G")
    .Output("sums: float64")
    .Attr("G: list({float, double, bfloat16, half}) >= 1")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Vector(context->num_inputs()));
      return absl::OkStatus();
    });

REGISTER_OP("DtoptSumRows")
    .Input("values: T")
    .Input("indices: I")
    .Input("limit: int64")
    .Output("sums: W")
    .Output("rows: int64")
    .Attr("T: {float, double, bfloat16, half}")
    .Attr("I: {int32, int64}")
    .Attr("W: {float, double}")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      tensorflow::shape_inference::ShapeHandle values;
      TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &values));
      TF_RETURN_IF_ERROR(context->ReplaceDim(values, 0, context->UnknownDim(), &values));
      context->set_output(0, values);
      context->set_output(1, context->UnknownShapeOfRank(1));
      return absl::OkStatus();
    });

// Of sums of gradients that some rows were added to, see gathered.h. region: three numbers, as for DtoptGroup.
REGISTER_OP("DtoptAddRows")
    .Input("total: resource")
    .Input("sums: T")
    .Input("rows: int64")
    .Input("region: int64")
    .Attr("T: {float, double}")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_OP("DtoptTakeRows")
    .Input("total: resource")
    .Input("rows: int64")
    .Input("region: int64")
    .Output("sums: T")
    .Attr("T: {float, double}")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->UnknownShapeOfRank(2));
      return absl::OkStatus();
    });

REGISTER_OP("DtoptGather")
    .Input("window: int64")
    .Input("values: T")
    .Input("rows: int64")
    .Attr("T: {float, double, bfloat16, half}")
    .Attr("limit: int")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

// windows, meanings, limits, calls: as for DtoptStep. into: the number of a group with one variable, which is given the sums.
REGISTER_OP("DtoptWindowSquares")
    .Input("windows: M * int64")
    .Input("meanings: float64")
    .Input("into: int64")
    .Attr("M: int >= 1")
    .Attr("limits: list(int) >= 1")
    .Attr("calls: int")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

// The sums of squares of what a device has of each gradient, written to the one variable of the group that `into` numbers.
REGISTER_OP("DtoptPartSquares")
    .Input("gradients: G")
    .Input("into: int64")
    .Attr("G: list({float, double, bfloat16, half}) >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_OP("DtoptWindowClear")
    .Input("windows: M * int64")
    .Input("meanings: float64")
    .Attr("M: int >= 1")
    .Attr("limits: list(int) >= 1")
    .Attr("calls: int")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_OP("DtoptMarkRows")
    .Input("before: int64")
    .Input("rows: int64")
    .Output("mark: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

REGISTER_OP("DtoptMarkedRows")
    .Input("mark: int64")
    .Input("limit: int64")
    .Output("rows: int64")
    .SetIsStateful()
    .SetShapeFn(VectorShape);

}  // namespace dtopt

#endif  // DTOPT_INTERFACES_H_
