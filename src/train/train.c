/* train.c - ida_train: the loop over a trainer's steps, evaluations and checkpoints. */
#include "train/trainer.h"

#include <stdio.h>

/* Lack of memory, in the light of the plan. */
static ida_status explained(const ida_trainer *t, ida_status st) {
    if (st == IDA_E_NOMEM) ida_plan_explain(&t->plan, t->o.activation_checkpointing);
    return st;
}

/* What is due after a step. A callback that asks to stop still gets its checkpoint; the evaluation waits for the resume. */
static ida_status after_step(ida_trainer *t) {
    const ida_train_options *o = &t->o;
    if (t->eval_pending && !t->cancelled) IDA_TRY(explained(t, ida_trainer_eval(t, NULL)));
    if (t->cancelled || ida_train_due(t->step, o->save_every, o->steps)) IDA_TRY(ida_trainer_save(t));
    return IDA_OK;
}

static ida_status loop(ida_trainer *t) {
    const ida_train_options *o = &t->o;
    /* A resumed run first makes up for what its step still lacked: the evaluation, and the log line of the save. */
    if (t->eval_pending && !t->cancelled) IDA_TRY(explained(t, ida_trainer_eval(t, NULL)));
    if (t->step > 0 && !t->cancelled && ida_train_due(t->step, o->save_every, o->steps)) IDA_TRY(ida_trainer_save(t));
    while (!t->cancelled && t->step < o->steps) {
        IDA_TRY(explained(t, ida_trainer_step(t)));
        IDA_TRY(after_step(t));
    }
    if (t->cancelled) {
        IDA_FAIL(IDA_E_CANCELLED, "training stopped at step %lld of %lld on request: resume continues from there",
                 (long long)t->step, (long long)o->steps);
    }
    return IDA_OK;
}

/* What was done is not lost with a failure of the data or the log; the failure stays the message. */
static void rescue(ida_trainer *t) {
    if (t->torn || t->step == t->saved_step || t->step == 0) return;
    char why[1024];
    snprintf(why, sizeof why, "%s", ida_last_error());
    if (ida_trainer_save(t) != IDA_OK) ida_log("step %lld could not be saved after a failure: %s", (long long)t->step,
                                               ida_last_error());
    ida_fail(IDA_E_IO, __FILE__, __LINE__, "%s", why);
}

ida_status ida_train(const ida_train_options *o, ida_train_fn *on_event, void *user) {
    ida_trainer *t = NULL;
    IDA_NEED(o);
    IDA_TRY(ida_trainer_open(o, on_event, user, &t));
    ida_status st = loop(t);
    if (st == IDA_E_IO || st == IDA_E_FORMAT || st == IDA_E_NOMEM) rescue(t);
    ida_trainer_close(t);
    return st;
}
