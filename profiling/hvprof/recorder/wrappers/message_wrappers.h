/* The wrappers of messages, as pmpi.c has those of collectives. */
#define MESSAGE(SYMBOL, SHOWN, PARAMETERS, ARGUMENTS, COMM, TYPE, BYTES, PEER, TAG, DIRECTION, \
                REQUEST)                                                                       \
    WRAP(SYMBOL, SHOWN, PARAMETERS, ARGUMENTS, ENTER(COMM, TYPE, BYTES, PEER, false),          \
         CALL(COMM, TYPE, BYTES, PEER, TAG, false, DIRECTION, REQUEST))

/* A blocking send and its non-blocking twin. */
#define SEND(NAME, INAME, name)                                                                \
    MESSAGE(C(NAME), #name,                                                                    \
            (const void *in, COUNT count, MPI_Datatype type, int to, int tag, MPI_Comm comm),  \
            (in, count, type, to, tag, comm), comm, type, bytes_of(count, type), to, tag, TO,  \
            NULL)                                                                              \
    MESSAGE(C(INAME), "i" #name,                                                               \
            (const void *in, COUNT count, MPI_Datatype type, int to, int tag, MPI_Comm comm,   \
             MPI_Request *request),                                                            \
            (in, count, type, to, tag, comm, request), comm, type, bytes_of(count, type), to,  \
            tag, TO, request)

/* Sends to one rank and receives from another, the parameter `from`. */
#define EXCHANGE(SYMBOL, SHOWN, PARAMETERS, ARGUMENTS, COMM, TYPE, BYTES, TO_RANK, FROM_RANK,  \
                 FROM_BYTES, TAG)                                                              \
    WRAP(SYMBOL, SHOWN, PARAMETERS, ARGUMENTS, ENTER(COMM, TYPE, BYTES, from, false),          \
         if (CALL(COMM, TYPE, BYTES, TO_RANK, TAG, false, NO_DIRECTION, NULL) == DATA)         \
             count_exchange(into, COMM, TO_RANK, BYTES, FROM_RANK, FROM_BYTES,                  \
                            end_ns - begin_ns))

/* Makes a request that is started later. */
#define NOTED(SYMBOL, PARAMETERS, ARGUMENTS, DIRECTION, COMM, PEER, BYTES, REQUEST)            \
    EXPORT int SYMBOL PARAMETERS                                                               \
    {                                                                                          \
        int(*real) PARAMETERS = find("P" TEXT(SYMBOL));                                        \
        struct recorder *into = recorder;                                                      \
        int code = real ARGUMENTS;                                                             \
        if (into && code == MPI_SUCCESS)                                                       \
            note_started(*REQUEST,                                                             \
                         (struct message){DIRECTION, comm_entry(into, COMM), PEER, BYTES});    \
        return code;                                                                           \
    }

#define ONE_SIDED(SYMBOL, SHOWN, PARAMETERS, ARGUMENTS, COUNT_OF, TYPE)                        \
    WRAP(SYMBOL, SHOWN, PARAMETERS, ARGUMENTS, PLAIN,                                          \
         count_one_sided(into, &self, begin_ns, end_ns, COUNT_OF, TYPE))
