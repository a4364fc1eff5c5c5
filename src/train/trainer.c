/* trainer.c - one run: opened or resumed, stepped, evaluated, saved. See trainer.h for the invariant. */
#include "train/trainer.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/mem.h"
#include "core/place.h"
#include "io/checkpoint.h"
#include "ops/backend.h"

/* ---------------------------------------------------------------- events */

/* To the log (when it is open and the event is part of the run's record), then to the caller. */
static ida_status emit(ida_trainer *t, ida_train_event *e, uint64_t batch_hash, bool record) {
    e->steps = t->o.steps;
    e->step = t->step;
    e->tokens = t->tokens;
    e->device_memory_planned_bytes = t->plan.total_bytes;
    int64_t now;
    ida_dev_used(t->dev, &now, &e->device_memory_peak_bytes);
    if (record && t->log && !t->log_failed) {
        ida_status st = ida_runlog_add(t->log, e, batch_hash);
        t->log_failed = st != IDA_OK;
        IDA_TRY(st);
    }
    if (t->on_event && t->on_event(t->user, e)) t->cancelled = true;
    return IDA_OK;
}

/* Asks the caller whether to go on. */
static void poll_caller(ida_trainer *t) {
    ida_train_event e = { .kind = IDA_EVENT_POLL };
    (void)emit(t, &e, 0, false);
}

static ida_status note(ida_trainer *t, const char *text, bool tell) {
    ida_train_event e = { .kind = IDA_EVENT_NOTE, .text = text };
    if (tell) return emit(t, &e, 0, t->step == 0);
    e.steps = t->o.steps;
    return t->step == 0 ? ida_runlog_add(t->log, &e, 0) : IDA_OK;
}

/* ---------------------------------------------------------------- open */

static ida_status copy_options(ida_trainer *t, const ida_train_options *o) {
    IDA_FAIL_IF(!o->data_dir, IDA_E_ARG, "training needs a data folder (made by `data pack`)");
    IDA_FAIL_IF(!o->out_dir, IDA_E_ARG, "training needs a run folder to write to");
    t->o = *o;
    t->o.config.max_position = o->seq_len;
    IDA_TRY(ida_train_check(&t->o));
    t->o.warmup_steps = ida_train_warmup(&t->o);
    t->data_dir = ida_strdup(o->data_dir);
    t->out_dir = ida_strdup(o->out_dir);
    t->tokenizer_json = ida_path_join(o->data_dir, "tokenizer.json");
    IDA_FAIL_IF(!t->data_dir || !t->out_dir || !t->tokenizer_json, IDA_E_NOMEM, "no memory for the training options");
    t->o.data_dir = t->data_dir;
    t->o.out_dir = t->out_dir;
    if (!ida_exists(t->tokenizer_json)) {
        ida_free(t->tokenizer_json);
        t->tokenizer_json = NULL;
    }
    return IDA_OK;
}

/* The tokenizer beside the data goes into every checkpoint: another one would turn the model's output into other text. */
static ida_status check_tokenizer(const ida_trainer *t) {
    ida_tokenizer *tok = NULL;
    if (!t->tokenizer_json || ida_dataset_tokenizer_hash(t->train) == 0) return IDA_OK;
    IDA_TRY(ida_tokenizer_load(t->tokenizer_json, &tok));
    uint64_t hash = ida_tokenizer_hash(tok);
    ida_tokenizer_free(tok);
    IDA_FAIL_IF(hash != ida_dataset_tokenizer_hash(t->train), IDA_E_FORMAT,
                "%s is not the tokenizer these tokens were made with (its hash differs from the manifest's); put the right one "
                "back",
                t->tokenizer_json);
    return IDA_OK;
}

static ida_status open_data(ida_trainer *t) {
    const ida_train_options *o = &t->o;
    const ida_dataset_options from = {
        .path = o->data_dir, .source = &o->source, .vocab = o->config.vocab_size, .verify = true};
    IDA_TRY(ida_dataset_open_as(&from, "train", &t->train));
    IDA_FAIL_IF(ida_dataset_samples(t->train, o->seq_len) < 1, IDA_E_FORMAT,
                "%s: the training split has %lld tokens, at least 2 are needed",
                o->data_dir, (long long)ida_dataset_tokens(t->train));
    IDA_FAIL_IF(o->config.vocab_size < ida_dataset_vocab(t->train), IDA_E_ARG,
                "the model's vocab_size is %lld, the data's vocabulary is %lld (%s): set vocab_size to at least that",
                (long long)o->config.vocab_size, (long long)ida_dataset_vocab(t->train), o->data_dir);
    IDA_TRY(check_tokenizer(t));
    IDA_TRY(ida_dataset_open_as(&from, "val", &t->val));
    t->val_hash = ida_dataset_hash(t->val);
    int64_t all = ida_dataset_samples(t->val, o->seq_len);
    t->eval_samples = all;
    int64_t wanted = o->eval_tokens > 0 ? (o->eval_tokens - 1) / o->seq_len + 1 : all;
    if (wanted < all) t->eval_samples = wanted;
    if (all < 1) {
        ida_dataset_close(t->val);
        t->val = NULL;
    }
    return IDA_OK;
}

/* *held: the folder that was locked is still the one of that name. */
static ida_status lock_once(ida_trainer *t, bool *held) {
    struct stat locked, named;
    *held = false;
    IDA_TRY(ida_mkdirs_made(t->out_dir, &t->made));
    t->lock_fd = open(t->out_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (t->lock_fd < 0 && errno == ENOENT) {
        t->made = 0;
        return IDA_OK;
    }
    IDA_FAIL_IF(t->lock_fd < 0, IDA_E_IO, "%s: %s", t->out_dir, strerror(errno));
    /* A file system without locks (some network ones) is no reason to refuse. */
    if (flock(t->lock_fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        t->made = 0; /* the run that is in it needs it, even empty */
        IDA_FAIL(IDA_E_ARG, "%s: another process is training into this folder", t->out_dir);
    }
    IDA_FAIL_IF(fstat(t->lock_fd, &locked), IDA_E_IO, "%s: %s", t->out_dir, strerror(errno));
    *held = stat(t->out_dir, &named) == 0 && named.st_dev == locked.st_dev && named.st_ino == locked.st_ino;
    if (*held) return IDA_OK;
    close(t->lock_fd);
    t->lock_fd = -1;
    t->made = 0;
    return IDA_OK;
}

/* A run that could not begin takes its folder back under its lock: who came to that lock in between holds a folder without a
 * name, and begins anew. */
static ida_status lock_folder(ida_trainer *t) {
    bool held = false;
    for (int i = 0; i < 3 && !held; i++) IDA_TRY(lock_once(t, &held));
    IDA_FAIL_IF(!held, IDA_E_IO, "%s: this folder is removed or replaced all the time: stop that, or give another folder",
                t->out_dir);
    return IDA_OK;
}

/* What the folder allows: a start (*dir NULL; *empty: nothing is in it) or a continuation from *dir. ida_checkpoint_find refuses
 * a folder whose checkpoints are all damaged, and a log that tells of one is not emptied: no run is silently started over. */
static ida_status look_at_folder(const ida_trainer *t, char **dir, bool *empty) {
    char **names = NULL;
    int64_t n = 0, step;
    bool has_log = false;
    *dir = NULL;
    IDA_TRY(ida_list_dir(t->out_dir, &names, &n));
    for (int64_t i = 0; i < n; i++) has_log = has_log || strcmp(names[i], "log.jsonl") == 0;
    ida_names_free(names, n);
    *empty = n == 0;
    if (*empty) return IDA_OK;
    IDA_FAIL_IF(!t->o.resume, IDA_E_ARG, "%s: the run folder is not empty: resume the run in it, or give another folder",
                t->out_dir);
    IDA_TRY(ida_checkpoint_find(t->out_dir, dir, &step));
    IDA_FAIL_IF(!*dir && !has_log, IDA_E_ARG,
                "%s: holds files but neither a checkpoint nor a log.jsonl: not a run folder, give another", t->out_dir);
    return *dir ? IDA_OK : ida_runlog_may_start_over(t->out_dir);
}

/* The log of a run in an empty folder. Only what was made here is this trainer's to take back: where there are no locks, another
 * one may have found the folder empty too. */
static ida_status make_log(ida_trainer *t) {
    char *path = ida_path_join(t->out_dir, "log.jsonl");
    IDA_FAIL_IF(!path, IDA_E_NOMEM, "no memory for the run log's path");
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), e = errno;
    ida_free(path);
    IDA_FAIL_IF(fd < 0 && e == EEXIST, IDA_E_ARG, "%s: another process is training into this folder", t->out_dir);
    IDA_FAIL_IF(fd < 0, IDA_E_IO, "%s/log.jsonl: cannot create: %s", t->out_dir, strerror(e));
    close(fd);
    t->own_log = true;
    return IDA_OK;
}

static ida_status allocate(ida_trainer *t) {
    const ida_train_options *o = &t->o;
    IDA_TRY(ida_model_new(&o->config, t->dev, NULL, &t->model));
    int64_t block = t->model->table.block;
    IDA_TRY(IDA_DEV_CALLOC(t->dev, t->grads, block, "gradients"));
    IDA_TRY(IDA_DEV_CALLOC(t->dev, t->m, block, "first moments"));
    IDA_TRY(IDA_DEV_CALLOC(t->dev, t->v, block, "second moments"));
    int64_t tokens = o->micro_batch * o->seq_len; /* each may start a document: so many sequences at most */
    IDA_TRY(ida_acts_new(&o->config, t->dev, tokens, tokens, o->activation_checkpointing ? IDA_ACTS_RECOMPUTE : IDA_ACTS_TRAINING,
                         &t->acts));
    IDA_TRY(IDA_ALLOC(t->losses, tokens, "evaluation losses"));
    IDA_TRY(IDA_CALLOC(t->rows, o->batch / o->micro_batch, "batch"));
    for (; t->n_micro < o->batch / o->micro_batch; t->n_micro++)
        IDA_TRY(ida_rows_new(o->micro_batch, o->seq_len, &t->rows[t->n_micro]));
    return IDA_OK;
}

static ida_status load(ida_trainer *t, const char *dir) {
    json_t *state = NULL;
    char *path = ida_path_join(dir, "trainer_state.json");
    IDA_FAIL_IF(!path, IDA_E_NOMEM, "no memory for a path");
    ida_status st = ida_json_load(path, IDA_STATE_BYTES, &state);
    if (st == IDA_OK) st = ida_resume_check(t, state, path);
    if (st == IDA_OK) st = ida_checkpoint_load(dir, t->model, t->m, t->v, NULL);
    if (st == IDA_OK) st = ida_resume_take(t, state, path);
    if (st == IDA_OK) t->saved_step = t->step;
    json_decref(state);
    ida_free(path);
    return st;
}

static ida_status notes_at_start(ida_trainer *t, const char *plan) {
    ida_buf line = {0};
    ida_status st = note(t, plan, false);
    for (int g = 0; g < IDA_N_GROUPS && st == IDA_OK; g++) {
        line.len = 0;
        st = ida_optim_describe(&t->optim, &t->o, (ida_group)g, &line);
        if (st == IDA_OK) st = note(t, line.data, true);
    }
    if (st == IDA_OK && !t->val) st = note(t, "no validation tokens in the data: nothing to evaluate on", true);
    ida_buf_free(&line);
    return st;
}

static bool eval_due(const ida_trainer *t) { return t->val && ida_train_due(t->step, t->o.eval_every, t->o.steps); }

static ida_status open_run(ida_trainer *t, const char *plan) {
    char *dir = NULL;
    bool empty;
    IDA_TRY(lock_folder(t));
    IDA_TRY(look_at_folder(t, &dir, &empty));
    ida_status st = allocate(t);
    if (st == IDA_E_NOMEM) ida_plan_explain(&t->plan, t->o.activation_checkpointing);
    if (st == IDA_OK) {
        if (dir) st = load(t, dir);
        else st = ida_model_init(t->model, t->o.seed);
    }
    ida_free(dir);
    IDA_TRY(st);
    ida_optim_init(&t->optim, &t->o, &t->model->table);
    bool evaluated;
    if (empty) IDA_TRY(make_log(t));
    IDA_TRY(ida_runlog_open(t->out_dir, t->step, &evaluated, &t->log));
    t->eval_pending = t->step > 0 && !evaluated && eval_due(t);
    IDA_TRY(notes_at_start(t, plan));
    t->started = ida_now();
    t->started_step = t->step;
    return IDA_OK;
}

/* A run that could not begin: the log and the folders that it made, still under the lock. To hold the lock is not enough: the run
 * that made the log may have ended before. */
static void take_back(ida_trainer *t) {
    ida_runlog_close(t->log);
    t->log = NULL;
    char *log = t->own_log ? ida_path_join(t->out_dir, "log.jsonl") : NULL;
    if (log) (void)unlink(log);
    ida_free(log);
    ida_rmdirs(t->out_dir, t->made);
}

ida_status ida_trainer_open(const ida_train_options *o, ida_train_fn *on_event, void *user, ida_trainer **out) {
    ida_trainer *t = NULL;
    ida_status st = IDA_OK;
    ida_buf text = {0}, record = {0};
    IDA_TRY(IDA_CALLOC(t, 1, "trainer"));
    t->lock_fd = -1;
    t->saved_step = -1;
    t->on_event = on_event;
    t->user = user;
    IDA_TRY_GOTO(copy_options(t, o));
    IDA_TRY_GOTO(ida_device_open(t->o.device ? t->o.device : IDA_DEFAULT_DEVICE, t->o.dtype, &t->dev));
    IDA_TRY_GOTO(open_data(t));
    IDA_TRY_GOTO(ida_plan_make_on(t->dev, &t->o, &t->plan));
    IDA_TRY_GOTO(ida_plan_describe(&t->plan, true, &text));
    IDA_TRY_GOTO(ida_plan_describe(&t->plan, false, &record));
    ida_dev_reset_peak(t->dev);
    ida_train_event e = { .kind = IDA_EVENT_NOTE, .text = text.data };
    IDA_TRY_GOTO(emit(t, &e, 0, false));
    if (t->cancelled) IDA_FAIL_GOTO(IDA_E_CANCELLED, "training stopped before its start on request");
    IDA_TRY_GOTO(ida_plan_check(&t->plan, ida_device_memory_available(t->dev),
                                ida_on_host(t->dev) ? -1 : ida_memory_available(), t->o.activation_checkpointing));
    IDA_TRY_GOTO(open_run(t, record.data));
    *out = t;
    t = NULL;
out:
    ida_buf_free(&text);
    ida_buf_free(&record);
    if (t) take_back(t);
    ida_trainer_close(t);
    return st;
}

void ida_trainer_close(ida_trainer *t) {
    if (!t) return;
    ida_runlog_close(t->log);
    for (int64_t i = 0; i < t->n_micro; i++) ida_rows_free(t->rows[i]);
    ida_free(t->rows);
    ida_free(t->losses);
    ida_acts_free(t->acts);
    if (t->dev) {
        ida_dev_free(t->dev, t->grads);
        ida_dev_free(t->dev, t->m);
        ida_dev_free(t->dev, t->v);
    }
    ida_model_free(t->model);
    ida_dataset_close(t->train);
    ida_dataset_close(t->val);
    if (t->lock_fd >= 0) close(t->lock_fd);
    ida_free(t->data_dir);
    ida_free(t->out_dir);
    ida_free(t->tokenizer_json);
    ida_free(t);
}

/* ---------------------------------------------------------------- step */

static ida_batch batch_of(const ida_rows *r) {
    return (ida_batch){ .n_tokens = r->n_tokens, .ids = r->ids, .targets = r->targets,
                        .seqs = { .n = r->n_seq, .cu = r->cu, .pos0 = r->pos0 } };
}

ida_status ida_trainer_backward(ida_trainer *t, ida_trainer_gradient *g) {
    const ida_train_options *o = &t->o;
    const ida_param_table *table = &t->model->table;
    int64_t first, rows;
    memset(g, 0, sizeof *g);
    IDA_TRY(ida_rank_share(o->batch, t->step, 0, 1, &first, &rows));
    for (int64_t i = 0; i < t->n_micro; i++) {
        ida_rows *r = t->rows[i];
        IDA_TRY(ida_rows_fill(r, t->train, o->seed, first + i * o->micro_batch, o->micro_batch));
        g->n_tokens += r->n_tokens;
        g->n_scored += r->n_scored;
        g->batch_hash = XXH3_64bits_withSeed(r->ids, (size_t)r->n_tokens * sizeof *r->ids, g->batch_hash);
        g->batch_hash = XXH3_64bits_withSeed(r->targets, (size_t)r->n_tokens * sizeof *r->targets, g->batch_hash);
    }
    IDA_FAIL_IF(g->n_scored < 1, IDA_E_FORMAT, "%s: step %lld has no token to score: check the data set", t->data_dir,
                (long long)t->step + 1);
    /* One scale for the whole step: a mean of micro-batch means would weigh tokens of a short micro-batch more. */
    double scale = 1.0 / (double)g->n_scored, loss = 0;
    IDA_TRY(ida_dev_zero(t->dev, t->grads, table->block * (int64_t)sizeof *t->grads));
    for (int64_t i = 0; i < t->n_micro; i++) {
        ida_batch b = batch_of(t->rows[i]);
        double sum = 0;
        int64_t scored = 0;
        IDA_TRY(ida_model_forward_backward(t->model, t->acts, &b, NULL, scale, t->grads, &sum, &scored, NULL));
        loss += sum;
    }
    g->loss = loss * scale;
    return ida_block_norm(t->model->dev, table, t->grads, &g->norm, &g->bad);
}

/* The tensor at fault. A weight that is not finite explains everything after it, so weights are looked at first. */
static ida_status find_fault(const ida_trainer *t, const ida_trainer_gradient *g, const char **what, const char **tensor) {
    const ida_param_table *table = &t->model->table;
    double norm;
    int64_t bad;
    IDA_TRY(ida_block_norm(t->model->dev, table, t->model->params, &norm, &bad));
    bool loss = bad < 0 && g->bad < 0 && isfinite(g->norm);
    *what = bad >= 0 ? "weight" : loss ? "loss" : "gradient";
    if (bad < 0) bad = g->bad;
    *tensor = bad >= 0 ? table->params[bad].name : loss ? "the batch" : "all tensors";
    return IDA_OK;
}

static ida_status skip(ida_trainer *t, ida_train_event *e, const ida_trainer_gradient *g) {
    t->skips++;
    t->skips_in_row++;
    e->kind = IDA_EVENT_SKIP;
    IDA_TRY(find_fault(t, g, &e->what, &e->text));
    IDA_TRY(emit(t, e, g->batch_hash, true));
    IDA_FAIL_IF(t->skips_in_row >= t->o.max_skips, IDA_E_NUMERIC,
                "%s of %s is not finite at step %lld, skip %lld in a row: the newest checkpoint stays; lower lr or clip, or look "
                "at the data", e->what, e->text, (long long)t->step, (long long)t->skips_in_row);
    return IDA_OK;
}

ida_status ida_trainer_step(ida_trainer *t) {
    const ida_train_options *o = &t->o;
    ida_trainer_gradient g;
    double begin = ida_now(), lr = ida_schedule_lr(o, t->step);
    IDA_TRY(ida_trainer_backward(t, &g));
    double gscale = o->clip > 0 && g.norm > o->clip ? o->clip / g.norm : 1.0;
    /* 1e18: above it the square, the second moment, leaves the range of float. */
    if (!(g.norm * gscale < 1e18)) g.norm = INFINITY;
    bool good = isfinite(g.loss) && isfinite(g.norm);
    if (good) {
        t->torn = true;
        IDA_TRY(ida_optim_update(&t->optim, o, t->model, t->m, t->v, t->grads, lr, gscale, t->updates + 1));
        t->torn = false;
        t->updates++;
    }
    t->step++;
    t->tokens += g.n_tokens;
    t->eval_pending = eval_due(t);
    double now = ida_now();
    ida_train_event e = { .kind = IDA_EVENT_STEP, .loss = g.loss, .lr = lr, .grad_norm = g.norm };
    e.tokens_per_s = (double)g.n_tokens / fmax(now - begin, 1e-9);
    e.eta_s = (now - t->started) / (double)(t->step - t->started_step) * (double)(o->steps - t->step);
    if (!good) return skip(t, &e, &g);
    t->skips_in_row = 0;
    return emit(t, &e, g.batch_hash, true);
}

/* ---------------------------------------------------------------- evaluation, checkpoint */

ida_status ida_trainer_eval(ida_trainer *t, double *loss) {
    if (!t->val) t->eval_pending = false;
    if (!t->val) return IDA_OK;
    ida_rows *r = t->rows[0];
    double sum = 0;
    int64_t scored = 0;
    for (int64_t first = 0; first < t->eval_samples; first += t->o.micro_batch) {
        int64_t left = t->eval_samples - first;
        poll_caller(t);
        if (t->cancelled) return IDA_OK;
        IDA_TRY(ida_rows_fill_in_order(r, t->val, first, left < t->o.micro_batch ? left : t->o.micro_batch));
        ida_batch b = batch_of(r);
        IDA_TRY(ida_model_forward(t->model, t->acts, &b, NULL, t->losses, NULL, NULL, 0));
        for (int64_t i = 0; i < r->n_tokens; i++) sum += (double)t->losses[i];
        scored += r->n_scored;
    }
    int64_t tokens = ida_dataset_tokens(t->val), bytes = ida_dataset_bytes(t->val);
    bool whole = t->eval_samples == ida_dataset_samples(t->val, t->o.seq_len);
    char text[160];
    snprintf(text, sizeof text, "%lld of %lld validation tokens scored%s", (long long)scored, (long long)tokens,
             whole || bytes < 1 ? "" : "; bits per byte by the whole split's tokens per byte");
    ida_train_event e = { .kind = IDA_EVENT_EVAL, .loss = scored > 0 ? sum / (double)scored : 0, .text = text };
    if (bytes > 0) e.bits_per_byte = e.loss * ((double)tokens / (double)bytes) / 0.69314718055994530942;
    if (loss) *loss = e.loss;
    IDA_TRY(emit(t, &e, 0, true));
    t->eval_pending = false;
    return IDA_OK;
}

static ida_status check_finite(const ida_trainer *t, const float *block, const char *what) {
    double norm;
    int64_t bad;
    IDA_TRY(ida_block_norm(t->model->dev, &t->model->table, block, &norm, &bad));
    IDA_FAIL_IF(bad >= 0, IDA_E_NUMERIC, "%s of %s is not finite at step %lld: no checkpoint written, the newest one stays", what,
                t->model->table.params[bad].name, (long long)t->step);
    return IDA_OK;
}

static ida_status publish(ida_trainer *t) {
    IDA_TRY(check_finite(t, t->model->params, "weight"));
    IDA_TRY(check_finite(t, t->m, "first moment"));
    IDA_TRY(check_finite(t, t->v, "second moment"));
    if (!t->log_failed) {
        ida_status synced = ida_runlog_sync(t->log);
        t->log_failed = synced != IDA_OK;
        IDA_TRY(synced);
    }
    json_t *state = NULL;
    IDA_TRY(ida_resume_state(t, &state));
    const ida_checkpoint c = {
        .model = t->model, .m = t->m, .v = t->v, .state = state, .tokenizer_json = t->tokenizer_json};
    const ida_status st = ida_checkpoint_save(t->out_dir, t->step, &c, t->o.keep);
    if (st == IDA_OK) t->saved_step = t->step;
    json_decref(state);
    return st;
}

ida_status ida_trainer_save(ida_trainer *t) {
    if (t->saved_step != t->step) IDA_TRY(publish(t));
    char *dir = ida_asprintf("%s/step-%08lld", t->out_dir, (long long)t->step);
    IDA_FAIL_IF(!dir, IDA_E_NOMEM, "no memory for a path");
    ida_train_event e = { .kind = IDA_EVENT_SAVE, .text = dir };
    ida_status st = emit(t, &e, 0, true);
    ida_free(dir);
    return st;
}
