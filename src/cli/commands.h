/* commands.h - the commands, one file each. */
#ifndef IDATTN_CLI_COMMANDS_H
#define IDATTN_CLI_COMMANDS_H

#include "options.h"

extern const command command_info, command_doctor, command_mixer, command_tokenizer_train, command_tokenizer_encode,
    command_tokenizer_decode, command_data_pack, command_data_inspect, command_train, command_eval_ppl, command_eval_length,
    command_generate, command_bench, command_report, command_help, command_version;

extern const command *const all_commands[]; /* NULL-terminated, in the order of the help */

#endif
