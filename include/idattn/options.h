/* idattn/options.h - every option of the library by name: what there is, set from text, read back as JSON. For
 * programs and bindings that do not mirror the structs: take a block of "bytes" bytes, let ida_options_defaults fill
 * it, set what is wanted by key, and hand it to the call. */
#ifndef IDATTN_OPTIONS_H
#define IDATTN_OPTIONS_H

#include "idattn/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The options of a group, {"group", "bytes", "options": [...]}, or with group NULL a list of all groups. Groups are
 * named for the struct they describe: "train" is ida_train_options, and so are config, shape, recipe, cost, bpe, pack,
 * inspect, sample, ppl, length, mixer, place and process; "bench.NAME" has the KEY=VALUE arguments of ida_bench.
 * Of an option:
 *   key         its name in the calls below and in JSON; in text '-' may stand for '_'
 *   type        int, real, bool, enum (one of names), seed (64 bits without sign; a text in JSON), text (with names:
 *               one of them), list (of texts)
 *   default     absent where there is none
 *   min, max    of numbers, ends included; without max: any
 *   names       legal values
 *   help, arg   one line; a word for the value
 *   letter      the program's short option
 *   required    true: it must be given
 *   derived     true: not given, it depends on other options; the text "auto" goes back to that
 *   result      true: another value gives another result; may_change: and yet a run may go on with another one
 *   argument    true: the program finds it out or takes it as an argument, and has no option of that name
 * The string belongs to the caller: ida_string_free. IDA_E_ARG lists the groups. */
IDA_API ida_status ida_options_json(const char *group, char **json);

/* `options` points to the group's struct and `bytes` is its size here: IDA_E_ARG where the library's differs. */
IDA_API ida_status ida_options_defaults(const char *group, void *options, size_t bytes);
/* Sets one option from text. A text option borrows `value`: it must outlive the options. IDA_E_ARG names key, value
 * and what is legal; nothing is changed then. Only the option's own range is looked at: the call that takes the
 * options checks them all. */
IDA_API ida_status ida_options_set(const char *group, void *options, size_t bytes, const char *key, const char *value);
/* Sets an option of type list; array and texts are borrowed. */
IDA_API ida_status ida_options_set_list(const char *group, void *options, size_t bytes, const char *key,
                                        const char *const *values, int64_t n);
/* All options as one JSON object, key to value; null: not given. ida_string_free. */
IDA_API ida_status ida_options_get(const char *group, const void *options, size_t bytes, char **json);

#ifdef __cplusplus
}
#endif
#endif
