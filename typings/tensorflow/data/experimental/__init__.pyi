from tensorflow.data.experimental import service as service
