/* table.cu - the op table. Each entry is the op between ida_cuda_enter and ida_cuda_leave, so that an op may be called from any
 * thread and two threads with a model each do not meet in the device's scratch. */
#include "ops/cuda/cuda_device.h"

template <class Fn, Fn *op> struct guarded;
template <class... Args, ida_status (*op)(const ida_device *, Args...)>
struct guarded<ida_status(const ida_device *, Args...), op> {
    static ida_status call(const ida_device *dev, Args... args) {
        IDA_TRY(ida_cuda_enter(dev));
        const ida_status st = op(dev, args...);
        ida_cuda_leave(dev);
        return st;
    }
};

static const ida_ops table = {
#define IDA_OP(name) guarded<ida_##name##_fn, ida_cuda_##name>::call,
#include "ops/ops.def"
#undef IDA_OP
};
const ida_ops *const ida_cuda_op_table = &table;

int64_t ida_cuda_n_ops(void) {
    return 0
#define IDA_OP(name) +1
#include "ops/ops.def"
#undef IDA_OP
        ;
}
