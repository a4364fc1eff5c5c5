/* names.h - the names of the enums of idattn/base.h, as files, options and messages have them. Position = value;
 * NULL-terminated. */
#ifndef IDA_CORE_NAMES_H
#define IDA_CORE_NAMES_H

extern const char *const ida_dtype_names[], *const ida_disc_names[];
extern const char *const ida_readout_names[], *const ida_form_names[];

#endif
