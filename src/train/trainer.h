/* trainer.h - one training run as an object that is stepped from outside; ida_train is a loop over it.
 * Not here: maths of the model (model), files of a checkpoint (io), order of the samples (data).
 * Invariant: everything after step s is a pure function of (options, data, checkpoint of step s). So resume is exact, and the
 * log of a resumed run equals that of an uninterrupted one but for times. A step that is skipped changes nothing but the
 * counters: its data is used up, weights, moments and their bias correction are as before. */
#ifndef IDA_TRAIN_TRAINER_H
#define IDA_TRAIN_TRAINER_H

#include "idattn/train.h"
#include "core/fields.h"
#include "core/json.h"
#include "core/mem.h"
#include "data/dataset.h"
#include "model/model.h"
#include "train/plan.h"

/* ---- options and schedule (options.c, schedule.c) */

extern const ida_fields ida_train_fields, ida_recipe_fields, ida_cost_fields; /* cost.c */
/* Checks ranges; IDA_E_ARG names option, value and range. Paths are not looked at. */
ida_status ida_train_check(const ida_train_options *o);
/* warmup_steps as it is used: -1 becomes 375M tokens' worth of steps, at most 15% of the run. */
int64_t ida_train_warmup(const ida_train_options *o);

/* Learning rate of step s = 0 .. steps-1, with w = warm-up steps (0 counts as 1):
 *   s <  w: lr (s+1)/w, so step w-1 has exactly lr;
 *   s >= w: min_lr + (lr - min_lr) (1 + cos(pi (s-(w-1)) / (steps-1-(w-1)))) / 2, so step steps-1 has exactly min_lr. */
double ida_schedule_lr(const ida_train_options *o, int64_t s);

/* Whether something done every `every` steps (0 = only at the end) is due after `step` of `steps`. */
static inline bool ida_train_due(int64_t step, int64_t every, int64_t steps) {
    return step == steps || (every > 0 && step % every == 0);
}

/* ---- optimiser (optim.c) */

enum { IDA_N_GROUPS = 3 };

typedef struct ida_optim_group {
    int64_t n_tensors, numel;
    double lr_scale;       /* the group's rate is lr_scale * ida_schedule_lr: min(lr, ssm_lr_max) / lr for SSM, else 1 */
    double weight_decay;
} ida_optim_group;

typedef struct ida_optim { ida_optim_group groups[IDA_N_GROUPS]; } ida_optim;

void ida_optim_init(ida_optim *a, const ida_train_options *o, const ida_param_table *t);
/* One line of the group table, for a NOTE. */
ida_status ida_optim_describe(const ida_optim *a, const ida_train_options *o, ida_group g, ida_buf *out);
/* L2 norm of a gradient block: squares summed per tensor, tensors in table order, in double. *bad = -1, or the tensor
 * whose sum is not finite that the backward pass meets first (the last in the table). */
ida_status ida_block_norm(const ida_device *dev, const ida_param_table *t, const float *block, double *norm, int64_t *bad);
/* AdamW on every tensor of the model, and its rounded matrices with it; `updates` counts from 1. */
ida_status ida_optim_update(const ida_optim *a, const ida_train_options *o, ida_model *model, float *m, float *v,
                            const float *grads, double lr, double gscale, int64_t updates);

/* ---- run log (runlog.c): RUN/log.jsonl, one object per event */

typedef struct ida_runlog ida_runlog;
/* Opens for a run that continues after `step` (0 = from the start, the file is emptied). Dropped: a torn last line, lines of
 * later steps, and the save of `step` itself: whoever resumes writes it again where it is due, and a save only on request is no
 * part of the record. *evaluated: the log has the evaluation of `step`. */
ida_status ida_runlog_open(const char *run_dir, int64_t step, bool *evaluated, ida_runlog **out);
/* Of a folder without a checkpoint: IDA_E_ARG when its log tells of one, or is not a run's. It would be emptied. */
ida_status ida_runlog_may_start_over(const char *run_dir);
/* batch_hash: of a STEP or SKIP. */
ida_status ida_runlog_add(ida_runlog *l, const ida_train_event *e, uint64_t batch_hash);
/* Puts everything written so far on the disk: before a checkpoint, so that no checkpoint is ahead of its log. */
ida_status ida_runlog_sync(const ida_runlog *l);
void ida_runlog_close(ida_runlog *l);

/* ---- the run */

typedef struct ida_trainer {
    ida_train_options o;        /* a copy: own paths, warm-up resolved, config.max_position = seq_len */
    char *data_dir, *out_dir, *tokenizer_json;
    size_t made;                /* what ida_trainer_open made of out_dir (ida_mkdirs_made) */
    bool own_log;               /* ida_trainer_open found out_dir empty and made log.jsonl in it */
    int lock_fd;                /* flock on the run folder: one trainer at a time */

    ida_dataset *train, *val;   /* val NULL: nothing to evaluate on */
    uint64_t val_hash;
    ida_rows **rows;            /* [n_micro] */
    int64_t n_micro, eval_samples;
    float *losses;              /* [micro_batch * seq_len], evaluation */

    const ida_device *dev;
    ida_train_plan plan;
    ida_model *model;
    ida_acts *acts;
    float *grads, *m, *v;       /* blocks laid out by model->table, on dev */
    ida_optim optim;

    ida_runlog *log;
    ida_train_fn *on_event;
    void *user;
    bool cancelled;             /* a callback asked to stop */
    bool log_failed;            /* a line could not be written: nothing more is, and a checkpoint does not wait for it */
    bool torn;                  /* an update failed half-way: the weights belong to no step and are not saved */

    int64_t step;               /* steps done: the next one uses samples step*batch .. */
    int64_t updates, tokens, skips, skips_in_row;
    bool eval_pending;          /* the evaluation due at `step` has not been made */
    int64_t saved_step;         /* newest checkpoint of this run, -1 = none */
    double started;             /* ida_now() at open, and the step then: for the ETA */
    int64_t started_step;
} ida_trainer;

/* Checks, plans, refuses what does not fit, allocates, then starts at step 0 or continues from the newest whole checkpoint. A
 * failure leaves no run folder that was not there, and one that was empty it leaves empty. */
ida_status ida_trainer_open(const ida_train_options *o, ida_train_fn *on_event, void *user, ida_trainer **out);
/* What one step's gradient is made of; the two halves of ida_trainer_step. Fills t->rows and t->grads. */
typedef struct ida_trainer_gradient {
    double loss, norm;
    int64_t n_tokens, n_scored, bad;  /* bad: of ida_block_norm */
    uint64_t batch_hash;
} ida_trainer_gradient;
ida_status ida_trainer_backward(ida_trainer *t, ida_trainer_gradient *g);
/* One optimiser step (or a skipped one), with its STEP or SKIP event. IDA_E_NUMERIC after max_skips in a row. */
ida_status ida_trainer_step(ida_trainer *t);
/* The fixed part of the validation split, with its EVAL event; nothing when there is none. *loss may be NULL. Asks with POLL
 * before each micro-batch: told to stop it returns IDA_OK, with t->cancelled set, the evaluation still pending and *loss
 * untouched. */
ida_status ida_trainer_eval(ida_trainer *t, double *loss);
/* Publishes a checkpoint, with its SAVE event. Refuses weights or moments that are not finite. Once the log has failed, the
 * checkpoint is ahead of it: the log of the resumed run then lacks the lines that could not be written. */
ida_status ida_trainer_save(ida_trainer *t);
void ida_trainer_close(ida_trainer *t);

enum { IDA_STATE_BYTES = 1 << 20 }; /* of a trainer_state.json at most */
/* trainer_state.json (resume.c): written from and checked against a trainer; then counters are taken over. */
ida_status ida_resume_state(const ida_trainer *t, json_t **state);
ida_status ida_resume_check(const ida_trainer *t, const json_t *state, const char *where);
ida_status ida_resume_take(ida_trainer *t, const json_t *state, const char *where);

#endif
