/* eval.h - the option tables of the evaluations. */
#ifndef IDA_EVAL_EVAL_H
#define IDA_EVAL_EVAL_H

#include "core/fields.h"

extern const ida_fields ida_ppl_fields, ida_length_fields;

#endif
